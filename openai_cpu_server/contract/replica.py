"""Names of computed prompt beginnings, equal on every machine: a router knows what a replica holds.
And of who shares them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.model_info import attended_pairs

BLOCK_TOKENS = 64
"""Tokens of a whole block of the prefix cache: a multiple of the pool's blocks."""
_HASH_BYTES = 8
"""Two blocks of a million have the same name once in 37 million times. A router that is wrong sends a request
to a replica that computes the prompt: engines compare tokens, not names."""


def root_hash(namespace: str) -> int:
    """The name of the empty beginning. `namespace` is `GenerationRequest.cells_namespace`."""
    return _number(blake2b(namespace.encode(), digest_size=_HASH_BYTES).digest())


def block_hash(parent: int, tokens: Sequence[int]) -> int:
    """The name of the beginning that ends with the block `tokens`, behind the one that is named `parent`."""
    return _chained(parent, array("Q", tokens).tobytes())


def block_hashes(tokens: Sequence[int], namespace: str) -> tuple[int, ...]:
    """The names of all beginnings of `tokens` that are whole blocks, from the shortest to the longest."""
    data = array("Q", tokens)
    size = BLOCK_TOKENS * data.itemsize
    content, last = data.tobytes(), root_hash(namespace)
    return tuple(
        last := _chained(last, content[start : start + size])
        for start in range(0, len(content) - size + 1, size)
    )


def key_identity(given: bytes | None) -> str | None:
    """A digest that is equal for equal keys, and leads nowhere back; None where there is no key."""
    return None if given is None else sha256(given).hexdigest()


def cache_namespace(*, salt: str | None, key: str | None) -> str:
    """Equal for equal pairs of salt and key identity, else different; "" where there is neither.

    It is a digest, for it may be written to a file beside the cached prompts.
    """
    if salt is None and key is None:
        return ""
    return sha256(msgspec.json.encode([key, salt])).hexdigest()


def _chained(parent: int, content: bytes) -> int:
    return _number(
        blake2b(parent.to_bytes(_HASH_BYTES, "little") + content, digest_size=_HASH_BYTES).digest()
    )


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


class ByPriority(NamedTuple):
    """A figure for each priority: `figure[Priority.BATCH]`."""

    interactive: float = 0.0
    batch: float = 0.0


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What newcomers may expect of an engine, as its scheduler estimates it. Times are in milliseconds."""

    wait_ms: ByPriority = ByPriority()
    """Until a newcomer has a slot, and the prompts before its own are read."""
    token_ms: float
    """For each token of its prompt that is not cached, beside those who run now."""
    attended_ms: float = 0.0
    """For each pair of such a token and a cell before it."""
    stream_ms: tuple[float, ...] = ()
    """From one token to the next while 1, 2, 4, 8 and so on run, with contexts like those of now."""
    work_ms: ByPriority = ByPriority()
    """The time of all that was computed since the process started, had each step been full. Its rise in a
    second is the share of the engine that is used."""
    num_live: ByPriority = ByPriority()
    """Requests that run or wait."""

    def reading_ms(self, num_cached: int, num_tokens: int) -> float:
        """The time to read a prompt of `num_tokens` behind the first `num_cached`, which are cached."""
        num_read = max(0, num_tokens - num_cached)
        return self.token_ms * num_read + self.attended_ms * attended_pairs(num_cached, num_read)

    def step_ms(self, num_running: int) -> float:
        """From one token to the next while so many run; 0 where nobody does, or nothing is known."""
        if num_running < 1 or not self.stream_ms:
            return 0.0
        place = min(num_running.bit_length() - 1, len(self.stream_ms) - 2)
        fewer_ms, more_ms = self.stream_ms[place : place + 2]
        return fewer_ms + (more_ms - fewer_ms) * (num_running / (1 << place) - 1)


class PrefixNews(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine's prefix cache has changed since the news before: names of blocks (`block_hashes`)."""

    saved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class HeldUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica holds, for a router that may know an older version of that."""

    version: int
    """To be told with the next question."""
    is_whole: bool = False
    """`saved` is all that it holds: what was known before counts no more."""
    saved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
