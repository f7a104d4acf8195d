"""Our server's KV figures: `GET /v1/cache/stats`, `DELETE /v1/cache`."""

from __future__ import annotations

import msgspec

from bench.http_client import call

_PATH = "/v1/cache"


class Amount(msgspec.Struct, frozen=True):
    tokens: int
    bytes: int


class Pool(msgspec.Struct, frozen=True):
    """KV cells of running requests."""

    total: Amount
    used: Amount
    shared: Amount


class Cache(msgspec.Struct, frozen=True):
    used: Amount


class Savings(msgspec.Struct, frozen=True):
    running_requests: int


class CacheStats(msgspec.Struct, frozen=True):
    """Figures are None before the engine's first step."""

    pool: Pool | None
    cache: Cache | None
    savings: Savings | None


async def cache_stats(port: int) -> CacheStats:
    """Return the figures. Raises HttpFailed."""
    return msgspec.json.decode(await call(port, "GET", f"{_PATH}/stats"), type=CacheStats)


async def clear_cache(port: int) -> None:
    """Drop all prompts that are not pinned, with the engine's next step. Raises HttpFailed."""
    await call(port, "DELETE", _PATH)
