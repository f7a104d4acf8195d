"""Copies of cells and states in host memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Protocol

from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS
from openai_cpu_server.llama.cells.block_store import BlockStore, Bytes, SavedCells
from openai_cpu_server.llama.cells.context import Context


class Positions(Protocol):
    @property
    def is_even(self) -> bool:
        """True if each token has a position of its own."""
        ...

    def position(self, index: int) -> int:
        """Cells of all earlier tokens stand before this position."""
        ...


class CellCopies:
    """Saves and restores cells and states through a scratch slot, which is empty otherwise.

    llama.cpp writes a sequence's cells and state together, so the scratch slot holds only one of them. Saving
    takes no free cells. Restoring n cells takes as many, rounded up to whole parts within the block; the
    excess is free again at the end.
    """

    def __init__(
        self,
        context: Context,
        store: BlockStore,
        opened: Mapping[int, Positions],
        *,
        window: int,
        scratch_slot: int,
        empty_slot: int,
    ) -> None:
        """`window`: see `Model`. `empty_slot`: stays empty."""
        self._context = context
        self._store = store
        self._opened = opened
        self._scratch = scratch_slot
        self._empty = empty_slot
        # llama.cpp leaves out what a window, or the chunk that it is, hides from the end of a part.
        self._part = gcd(POOL_BLOCK_TOKENS, window)
        self._sizes: dict[int, int] = {}
        """Bytes of a part, by its number of cells."""

    def save(self, slot: int, start: int, end: int) -> SavedCells:
        """Save the cells of positions start .. end-1. Raises `DecodeFailed`."""
        if self._context.copies_whole:  # they are in the state
            return SavedCells(self._store.allocate(0), ())
        parts = self._parts(start, end)
        is_even = self._opened[slot].is_even
        sizes = tuple(self._size(slot, first, last, is_even=is_even) for first, last in parts)
        cells = SavedCells(self._store.allocate(sum(sizes)), sizes)
        for index, (first, last) in enumerate(parts):
            self._take(slot, first, last)
            self._context.read_cells(self._scratch, cells.part(index))
            self._context.free_slot(self._scratch)
        return cells

    def save_state(self, slot: int) -> SavedCells:
        """Save the slot's state. Raises `DecodeFailed`.

        Only the slot itself knows which of its snapshots is the state. Without snapshots it may have cells of
        windows, which must not be saved with the state.
        """
        if self._context.copies_whole:
            return self._saved(slot, self._context.cells_bytes, self._context.read_cells)
        source = slot if self._context.snapshots else self._scratch
        self._context.share_state(slot, self._scratch)
        state = self._saved(source, self._context.state_bytes, self._context.read_state)
        self._context.free_slot(self._scratch)
        return state

    def restore_state(self, state: SavedCells, slot: int) -> None:
        """Give the slot a saved state, which must belong to its cells. Raises `DecodeFailed`."""
        if self._context.copies_whole:
            self._context.write_cells(slot, state.data)
            return
        self._context.write_state(self._scratch, state.data)
        self._context.share_state(self._scratch, slot)
        self._context.free_slot(self._scratch)

    def restore(self, cells: SavedCells, slot: int, start: int, end: int) -> None:
        """Restore the first end-start cells of a block that begins at position `start`, behind which the
        slot must have no state. Raises `DecodeFailed`."""
        if self._context.copies_whole:
            return
        parts = self._parts(start, end)
        assert len(parts) <= len(cells.sizes), f"{end - start} cells of a block that has fewer"
        for index, (first, last) in enumerate(parts):
            self._context.write_cells(self._scratch, cells.part(index))
            position = self._opened[slot].position
            self._context.share(self._scratch, slot, position(first), position(last))
            self._context.free_slot(self._scratch)

    def _saved(
        self, slot: int, size_of: Callable[[int], int], read: Callable[[int, Bytes], None]
    ) -> SavedCells:
        size = size_of(slot)
        state = SavedCells(self._store.allocate(size), (size,))
        read(slot, state.data)
        return state

    def _size(self, slot: int, start: int, end: int, *, is_even: bool) -> int:
        if is_even and end - start in self._sizes:
            return self._sizes[end - start]
        self._take(slot, start, end)
        size = self._context.cells_bytes(self._scratch)
        self._context.free_slot(self._scratch)
        if is_even:
            self._sizes[end - start] = size
        return size

    def _take(self, slot: int, start: int, end: int) -> None:
        position = self._opened[slot].position
        self._context.share(slot, self._scratch, position(start), position(end))
        self._context.share_state(self._empty, self._scratch)

    def _parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """llama.cpp reads a part whole or not at all. Parts of at most a ledger block bound the temporary
        cells of a restored prefix to those of its last block."""
        return [(first, min(first + self._part, end)) for first in range(start, end, self._part)]
