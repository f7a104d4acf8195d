"""Computes prompts in a small context of their own before they join the pool."""

from __future__ import annotations

import numpy as np

from openai_cpu_server.llama.cells.context import Context


class Staging:
    """Owns a context of the pool's model. A slot has its cells here or in the pool, never in both.

    llama.cpp walks over all cells of a pool for every head of every token, whosever they are: a prompt of
    173 tokens takes 530 ms in an empty pool and 660 beside 2,000 cells of others (docs/measurements.md, "One
    pool for all").
    """

    def __init__(self, context: Context, pool: Context) -> None:
        self.context = context
        self._pool = pool
        self._slots: set[int] = set()

    def enter(self, slot: int) -> None:
        """Say that the slot's next cells, the first ones or further ones, are computed here."""
        if slot not in self._slots:
            assert self._pool.num_positions(slot) == 0, f"slot {slot} has cells in the pool"
            self._slots.add(slot)

    def settle(self, slot: int) -> None:
        """Move the slot's cells, if they are here, into the pool, which must have room.
        The cells are copied."""
        if slot not in self._slots:
            return
        if self.context.num_positions(slot):
            cells = np.empty(self.context.cells_bytes(slot), np.uint8)
            self.context.read_cells(slot, cells)
            self._pool.write_cells(slot, cells)
        self.free(slot)

    def free(self, slot: int) -> None:
        """Give up the slot's cells, if they are here."""
        if slot in self._slots:
            self._slots.remove(slot)
            self.context.free_slot(slot)

    def close(self) -> None:
        self.context.close()
