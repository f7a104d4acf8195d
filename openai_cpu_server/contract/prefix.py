"""Names of computed prompt beginnings, equal on every machine: a router knows what a replica holds.
And of who shares them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b, sha256

import msgspec

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
