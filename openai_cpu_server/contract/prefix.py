"""Names of computed prompt beginnings, equal on every machine: a router knows what a replica holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

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
    return _chained(parent, array("I", tokens).tobytes())


def block_hashes(tokens: Sequence[int], namespace: str) -> tuple[int, ...]:
    """The names of all beginnings of `tokens` that are whole blocks, from the shortest to the longest."""
    data = array("I", tokens)
    size = BLOCK_TOKENS * data.itemsize
    content, last = data.tobytes(), root_hash(namespace)
    return tuple(
        last := _chained(last, content[start : start + size])
        for start in range(0, len(content) - size + 1, size)
    )


def _chained(parent: int, content: bytes) -> int:
    return _number(
        blake2b(parent.to_bytes(_HASH_BYTES, "little") + content, digest_size=_HASH_BYTES).digest()
    )


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")
