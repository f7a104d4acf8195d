"""Where answers are kept: what every store can do, and what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from openai_cpu_server.answers.similarity import Near

GROUP_LIMIT = 2000
"""So many turns are compared with a new one at most."""


class StoreFailed(Exception):
    """The store could not do it. The message names the kind of failure, and no address or password."""


class Bounds(NamedTuple):
    ttl_s: float
    """After so long an answer is forgotten, however often it was told."""
    max_bytes: int
    """What was told longest ago goes first."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    answer: bytes
    group: str | None = None
    vector: bytes | None = None
    """The turn, of length 1; None: it can only be found by its key."""

    @property
    def num_bytes(self) -> int:
        return len(self.key) + len(self.answer) + len(self.vector or b"") + _OVERHEAD_BYTES


class Size(NamedTuple):
    entries: int
    num_bytes: int


class AnswerStore(Protocol):
    """All methods raise StoreFailed. One that is cancelled may have done its work or not."""

    async def get(self, key: str) -> bytes | None:
        """The answer; None: there is none (any more). To be told makes it recently used."""
        ...

    async def near(self, group: str, vector: bytes, *, at_least: float) -> Sequence[Near]:
        """Turns of the group that are as similar as that, the most similar first: a few of them at most."""
        ...

    async def put(self, entry: Entry) -> Size:
        """In place of what is kept under its key. Returns what there is then."""
        ...

    async def forget(self, key: str, group: str | None) -> None:
        """`group`: where it was found, if it was."""
        ...

    async def clear(self) -> None: ...

    async def size(self) -> Size:
        """Expired answers may still be counted."""
        ...

    async def close(self) -> None: ...


_OVERHEAD_BYTES = 200
"""Rows, keys and indices of an entry take about so much."""
