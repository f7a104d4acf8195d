"""Who holds which cells of the pool and who waits for what, for those who watch."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.contract.shown import ShownHolding, ShownState, ShownWait
from openai_cpu_server.scheduler.admission import WaitsFor
from openai_cpu_server.scheduler.memory import Memory
from openai_cpu_server.scheduler.sequence import Sequence

_MOST_TILES = 1024
"""Tiles that a pool is told in, which bounds the message: a picture has no more."""
_MOST_RUNS = 4096
"""Runs of tiles in a message. Where cells lie more scattered, tiles are made larger until that is enough."""


def shown_state(memory: Memory, waits: Iterable[tuple[Sequence, WaitsFor]]) -> ShownState:
    ledger = memory.ledger
    tile_blocks = max(1, -(-ledger.num_blocks // _MOST_TILES))
    holdings = _holdings(memory, tile_blocks)
    while sum(len(holding.runs) for holding in holdings) > _MOST_RUNS:
        tile_blocks *= 2
        holdings = _holdings(memory, tile_blocks)
    return ShownState(
        pool_tiles=-(-ledger.num_blocks // tile_blocks),
        tile_blocks=tile_blocks,
        holdings=holdings,
        waits=tuple(ShownWait(sequence.request.id, lacks.value) for sequence, lacks in waits),
        cache_pinned_blocks=memory.cache.num_pinned,
    )


def _holdings(memory: Memory, tile_blocks: int) -> tuple[ShownHolding, ...]:
    return tuple(
        ShownHolding(
            sequence.request.id,
            sequence.request.client,
            sequence.request.priority,
            memory.ledger.runs(slot, tile_blocks),
        )
        for slot, sequence in memory.running.items()
    )
