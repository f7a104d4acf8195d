"""The bytes of the prefix cache's blocks, in host memory."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_SPARE_BYTES = 64 * 2**20
"""Memory of dropped blocks that is kept for new ones.
Faulting in fresh memory takes six times as long as copying into it."""

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def _fresh(num_bytes: int) -> Bytes:
    """Memory in pages of its own.
    They go back to the system with the array; memory from malloc often does not."""
    try:
        return np.frombuffer(mmap.mmap(-1, num_bytes, flags=_PRIVATE), np.uint8)
    except OSError:  # the system counts mappings
        return np.empty(num_bytes, np.uint8)


class SavedCells(NamedTuple):
    """Cells of consecutive positions in llama.cpp's format, in one or more parts one after the other."""

    data: Bytes
    """The bytes of all parts. It is read-only where it is a view of a mapped file."""
    sizes: tuple[int, ...]
    """The bytes of each part; their sum is the length of `data`."""

    def part(self, index: int) -> Bytes:
        start = sum(self.sizes[:index])
        return self.data[start : start + self.sizes[index]]


class BlockStore:
    """Owns saved cells by the number of their block."""

    def __init__(self) -> None:
        self._blocks: dict[int, SavedCells] = {}
        self._spares: list[Bytes] = []
        self._largest = 0
        """The bytes of a whole block, as far as is known."""

    @property
    def spare_bytes(self) -> int:
        """Memory of dropped blocks that is kept for the next blocks."""
        return len(self._spares) * self._largest

    def allocate(self, num_bytes: int) -> Bytes:
        """Memory for a block. Its content is undefined."""
        if num_bytes > self._largest:
            self._largest = num_bytes
            self._spares.clear()
        is_whole = num_bytes == self._largest
        return self._spares.pop() if is_whole and self._spares else _fresh(num_bytes)

    def put(self, number: int, cells: SavedCells) -> None:
        assert number not in self._blocks, f"block {number} is saved already"
        self._blocks[number] = cells

    def get(self, number: int) -> SavedCells:
        assert number in self._blocks, f"there is no block {number}"
        return self._blocks[number]

    def drop(self, number: int) -> None:
        """Free a block. Memory of whole blocks is kept for new ones, which mostly are whole, too."""
        data = self.get(number).data
        del self._blocks[number]
        is_whole = len(data) == self._largest
        if data.flags.writeable and is_whole and self.spare_bytes + len(data) <= _SPARE_BYTES:
            self._spares.append(data)

    def close(self) -> None:
        self._blocks.clear()
        self._spares.clear()
