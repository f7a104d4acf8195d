"""Names of computed prefixes, equal on every machine, and an engine's forecast, for routers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.model_info import attended_pairs

BLOCK_TOKENS = 64
"""Block of the prefix cache, a multiple of the pool's blocks."""
_HASH_BYTES = 8
"""Among a million blocks two have the same name once in 37 million times. That is harmless, because the
replica compares tokens."""


def root_hash(namespace: str) -> int:
    return _hashed(namespace.encode())


def block_hash(parent: int, tokens: Sequence[int]) -> int:
    return _hashed(parent.to_bytes(_HASH_BYTES, "little") + array("Q", tokens).tobytes())


def block_hashes(tokens: Sequence[int], namespace: str) -> tuple[int, ...]:
    """Return the names of all prefixes in whole blocks, shortest first."""
    data = array("Q", tokens)
    size = BLOCK_TOKENS * data.itemsize
    content, last = data.tobytes(), root_hash(namespace)
    return tuple(
        last := _hashed(last.to_bytes(_HASH_BYTES, "little") + content[start : start + size])
        for start in range(0, len(content) - size + 1, size)
    )


def key_identity(key: bytes | None) -> str | None:
    return None if key is None else sha256(key).hexdigest()


def cache_namespace(*, salt: str | None, key: str | None) -> str:
    """Digest of salt and key identity, or "" without either. It reveals neither to a reader of cache
    files."""
    if salt is None and key is None:
        return ""
    return sha256(msgspec.json.encode([key, salt])).hexdigest()


def _hashed(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=_HASH_BYTES).digest(), "little")


class ByPriority(NamedTuple):
    interactive: float = 0.0
    batch: float = 0.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Estimates for new requests. Times are in milliseconds."""

    wait_ms: ByPriority = ByPriority()
    """Time until a slot is free and earlier prompts are computed."""
    token_ms: float
    """Time for each uncached prompt token."""
    attended_ms: float = 0.0
    stream_ms: tuple[float, ...] = ()
    """Inter-token latency while 1, 2, 4, 8 and so on sequences run."""
    work_ms: ByPriority = ByPriority()
    """Computation so far at full steps, whose increase per second is the used share."""
    num_live: ByPriority = ByPriority()

    def reading_ms(self, num_cached: int, num_tokens: int) -> float:
        num_read = max(0, num_tokens - num_cached)
        return self.token_ms * num_read + self.attended_ms * attended_pairs(num_cached, num_read)

    def step_ms(self, num_running: int) -> float:
        """Return the inter-token latency, or 0 if nothing is known."""
        if num_running < 1 or not self.stream_ms:
            return 0.0
        place = min(num_running.bit_length() - 1, len(self.stream_ms) - 2)
        fewer_ms, more_ms = self.stream_ms[place : place + 2]
        return fewer_ms + (more_ms - fewer_ms) * (num_running / (1 << place) - 1)


class PrefixNews(msgspec.Struct, frozen=True, kw_only=True):
    saved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class HeldUpdate(PrefixNews, frozen=True, kw_only=True):
    version: int
    is_whole: bool = False
    """`saved` replaces what the router knows."""
