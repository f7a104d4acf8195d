"""Copies cells between the KV pool and host memory, through a slot set aside for it."""

from __future__ import annotations

from collections.abc import Iterator

from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS
from openai_cpu_server.llama.cells.block_store import BlockStore, SavedCells
from openai_cpu_server.llama.cells.context import Context


class CellCopies:
    """Saves cells and restores them. The scratch slot holds a part of the cells during the work, and nothing
    otherwise.

    To save takes no free cells. To restore n cells takes as many free ones, rounded up to whole parts (but
    never more than the block has); what is too many is free again at the end.
    """

    def __init__(self, context: Context, store: BlockStore, *, scratch_slot: int) -> None:
        self._context = context
        self._store = store
        self._scratch = scratch_slot
        self._sizes: dict[int, int] = {}
        """The bytes of a part, by its number of cells; they never change."""

    def save(self, slot: int, start: int, end: int) -> SavedCells:
        """Save the cells of positions start .. end-1, which may be shared. Raises `DecodeFailed`."""
        sizes = tuple(self._size(slot, first, last) for first, last in _parts(start, end))
        cells = SavedCells(self._store.allocate(sum(sizes)), sizes)
        for index, (first, last) in enumerate(_parts(start, end)):
            self._context.share(slot, self._scratch, first, last)
            self._context.read_cells(self._scratch, cells.part(index))
            self._context.free_slot(self._scratch)
        return cells

    def restore(self, cells: SavedCells, slot: int, start: int, end: int) -> None:
        """Restore the first end-start cells of a block that was saved from position `start` on.
        Raises `DecodeFailed`."""
        parts = list(_parts(start, end))
        assert len(parts) <= len(cells.sizes), f"{end - start} cells of a block that has fewer"
        for index, (first, last) in enumerate(parts):
            self._context.write_cells(self._scratch, cells.part(index))
            self._context.share(self._scratch, slot, first, last)
            self._context.free_slot(self._scratch)
        held = self._context.num_positions(slot)
        assert held == end, f"slot {slot} holds {held} tokens, not {end}: the block is of other positions"

    def _size(self, slot: int, start: int, end: int) -> int:
        count = end - start
        if count not in self._sizes:
            self._context.share(slot, self._scratch, start, end)
            self._sizes[count] = self._context.cells_bytes(self._scratch)
            self._context.free_slot(self._scratch)
        return self._sizes[count]


def _parts(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The start and the end of each part. llama.cpp reads a saved part whole or not at all.

    Parts of a ledger block make a restored prefix need, for a moment, no more room than its last block has.
    """
    return ((first, min(first + POOL_BLOCK_TOKENS, end)) for first in range(start, end, POOL_BLOCK_TOKENS))
