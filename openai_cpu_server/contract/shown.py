"""What those who watch an engine are told of its steps. Nothing of this is made while nobody watches."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import Priority


class ShownPart(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's part in a step. Counts are tokens; `draft` are those that may follow."""

    id: str
    client: str
    """As in `GenerationRequest`."""
    priority: Priority
    why: str
    """For which reason most of its tokens are computed: one of few words, those of the step log."""
    prompt: int = 0
    decode: int = 0
    forced: int = 0
    draft: int = 0
    accepted: int = 0
    """How many of the draft turned out right."""
    output: int = 0
    """Output tokens that came of it, forced ones included."""


class ShownHolding(msgspec.Struct, frozen=True, array_like=True):
    """Which cells of the KV pool one sequence holds. Who else is told of the same tiles shares them."""

    id: str
    client: str
    priority: Priority
    runs: tuple[tuple[int, int], ...]
    """Tiles of the pool, ascending: (first, how many in a row)."""


class ShownWait(msgspec.Struct, frozen=True, array_like=True):
    """Why a sequence near the head of the queue waits: for a `slot`, for `cells`, or for a `prefix` that
    another one is just computing."""

    id: str
    why: str


class ShownState(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what, and who waits for what. It is told now and then, and when the last sequence leaves."""

    pool_tiles: int
    """0: the model has no cells."""
    tile_blocks: int
    """Blocks of the pool in a tile: more than one in a pool of many blocks, which bounds the message."""
    holdings: tuple[ShownHolding, ...]
    waits: tuple[ShownWait, ...]
    cache_pinned_blocks: int
    """Blocks of the prefix cache that are never evicted."""


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    parts: tuple[ShownPart, ...] = ()
    """Those of the step's spans."""
    adapter: str | None = None
    """The key of the adapter that the step was computed with."""
    state: ShownState | None = None
    """None: it was told a moment ago."""
