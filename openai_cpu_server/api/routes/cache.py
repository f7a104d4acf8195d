"""`GET /v1/cache/stats`: what both tiers of KV memory hold and save. `DELETE /v1/cache` empties one."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.routes.generation import model_of
from openai_cpu_server.api.routes.models import json_response
from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.model_info import ModelInfo


class Amount(msgspec.Struct, frozen=True):
    """The same thing three times; whole blocks counted."""

    blocks: int
    tokens: int
    bytes: int


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The cells that running requests attend to."""

    block_tokens: int
    total: Amount
    used: Amount
    shared: Amount
    """Of those used, held by more than one request."""


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    """Computed prompts in host memory."""

    block_tokens: int
    capacity: Amount
    used: Amount
    evictions: int
    """Blocks that made room for others."""


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Against a server that gives each running request a whole context of its own."""

    running_requests: int
    full_contexts_bytes: int
    """`running_requests` times what one context of the model takes."""
    pool_used_bytes: int
    saved_bytes: int
    """The difference."""


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts are of the engine process, which starts anew after a crash."""

    object: str = "cache.stats"
    pool: Pool | None
    """This and `cache` and `savings` are None until the engine's first step."""
    cache: PrefixCache | None
    savings: Savings | None
    prompt_tokens: int
    """Of all requests that have run."""
    cached_tokens: int
    """Of these, not computed."""
    hit_rate: float | None
    """`cached_tokens / prompt_tokens`; None before the first."""


NO_STATS = CacheStats(pool=None, cache=None, savings=None, prompt_tokens=0, cached_tokens=0, hit_rate=None)


class CacheRoutes:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def stats(self, request: Request) -> Response:
        info, kv = model_of(self._engine), self._engine.kv_stats()
        if kv is None:
            return json_response(NO_STATS)
        num_running = sum(self._engine.status().running.values())
        return json_response(cache_stats(kv, info, num_running=num_running))

    async def clear(self, request: Request) -> Response:
        """204: with its next step the engine drops all but pinned prompts."""
        self._engine.clear_cache()
        return Response(status_code=204)


def cache_stats(kv: KVStats, info: ModelInfo, *, num_running: int) -> CacheStats:
    return CacheStats(
        pool=_pool(kv, info.kv_bytes_per_token),
        cache=_cache(kv, info.kv_bytes_per_token),
        savings=_savings(kv, info, num_running),
        prompt_tokens=kv.prompt_tokens,
        cached_tokens=kv.cached_tokens,
        hit_rate=kv.cached_tokens / kv.prompt_tokens if kv.prompt_tokens else None,
    )


def _pool(kv: KVStats, token_bytes: int) -> Pool:
    return Pool(
        block_tokens=kv.block_tokens,
        total=_amount(kv.pool_blocks, kv.block_tokens, token_bytes),
        used=_amount(kv.pool_blocks_used, kv.block_tokens, token_bytes),
        shared=_amount(kv.pool_blocks_shared, kv.block_tokens, token_bytes),
    )


def _cache(kv: KVStats, token_bytes: int) -> PrefixCache:
    return PrefixCache(
        block_tokens=kv.cache_block_tokens,
        capacity=_amount(kv.cache_capacity_blocks, kv.cache_block_tokens, token_bytes),
        used=_amount(kv.cache_blocks, kv.cache_block_tokens, token_bytes),
        evictions=kv.cache_evictions,
    )


def _savings(kv: KVStats, info: ModelInfo, num_running: int) -> Savings:
    """Never below zero: the last step's pool may hold a request that has just ended."""
    full = num_running * info.context_limit * info.kv_bytes_per_token
    used = kv.pool_tokens_used * info.kv_bytes_per_token
    return Savings(
        running_requests=num_running,
        full_contexts_bytes=full,
        pool_used_bytes=used,
        saved_bytes=max(0, full - used),
    )


def _amount(blocks: int, block_tokens: int, token_bytes: int) -> Amount:
    return Amount(blocks, blocks * block_tokens, blocks * block_tokens * token_bytes)
