"""Where answers are kept: what every store can do and is told, and which of several turns is most like
another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

_NUMBER = np.dtype("<f4")


class SimilarTurn(NamedTuple):
    key: str
    similarity: float
    """The cosine."""


def direction(numbers: Sequence[float] | np.typing.NDArray[np.float32]) -> bytes | None:
    """A vector of length 1 as bytes; None for one that points nowhere."""
    vector = np.asarray(numbers, _NUMBER)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        return None
    return (vector / length).astype(_NUMBER).tobytes()


def nearest(rows: Sequence[tuple[str, bytes]], vector: bytes, *, at_least: float) -> list[SimilarTurn]:
    """Those that are as similar as that, the most similar first. Rows of another length are none."""
    known = [(key, row) for key, row in rows if len(row) == len(vector)]
    if not known:
        return []
    table = np.frombuffer(b"".join(row for _, row in known), _NUMBER).reshape(len(known), -1)
    cosines = table @ np.frombuffer(vector, _NUMBER)
    order = np.argsort(-cosines, kind="stable")
    best = [SimilarTurn(known[index][0], float(cosines[index])) for index in order]
    return [near for near in best if near.similarity >= at_least]


GROUP_LIMIT = 2000
"""So many turns are compared with a new one at most."""


class StoreFailed(Exception):
    """The store could not do it. The message names the kind of failure, and no address or password."""


class StoreBounds(NamedTuple):
    ttl_s: float
    """After so long an answer is forgotten, however often it was told."""
    max_bytes: int
    """What was told longest ago goes first."""


class AnswerEntry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    answer: bytes
    group: str | None = None
    vector: bytes | None = None
    """The turn, of length 1; None: it can only be found by its key."""

    @property
    def num_bytes(self) -> int:
        return len(self.key) + len(self.answer) + len(self.vector or b"") + _OVERHEAD_BYTES


class StoreSize(NamedTuple):
    entries: int
    num_bytes: int


class AnswerStore(Protocol):
    """All methods raise StoreFailed. One that is cancelled may have done its work or not."""

    async def get(self, key: str) -> bytes | None:
        """The answer; None: there is none (any more). To be told makes it recently used."""
        ...

    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[SimilarTurn]:
        """Turns of the group that are as similar as that, the most similar first: a few of them at most."""
        ...

    async def put(self, entry: AnswerEntry) -> StoreSize:
        """In place of what is kept under its key. Returns what there is then."""
        ...

    async def forget(self, key: str, group: str | None) -> None:
        """`group`: where it was found, if it was."""
        ...

    async def clear(self) -> None: ...

    async def size(self) -> StoreSize:
        """Expired answers may still be counted."""
        ...

    async def close(self) -> None: ...


_OVERHEAD_BYTES = 200
"""Rows, keys and indices of an entry take about so much."""
