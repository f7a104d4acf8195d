"""Accounts for the KV pool in blocks. llama.cpp places the cells; the ledger says how many are left."""

from __future__ import annotations

from collections import Counter
from itertools import chain


class KVLedger:
    """Knows which slot holds which blocks of the pool, and how many slots share each block.

    A slot holds whole blocks, enough for the tokens that it was grown to; the last one may be partly filled.
    A shared block stands for the same cells in all its slots. So the ledger never counts fewer cells than
    llama.cpp has taken, and a step that fits the ledger fits the pool.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks))
        self._num_holders = [0] * num_blocks
        self._held: dict[int, list[int]] = {}
        self._num_shared = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_shared(self) -> int:
        """How many blocks more than one slot holds."""
        return self._num_shared

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_held(self, slot: int) -> int:
        return len(self._held.get(slot, ()))

    def num_exclusive(self, slot: int) -> int:
        """How many blocks only this slot holds: so many become free when it is freed."""
        return sum(self._num_holders[block] == 1 for block in self._held.get(slot, ()))

    def runs(self, slot: int, tile_blocks: int) -> tuple[tuple[int, int], ...]:
        """The tiles of the pool in which the slot holds blocks, ascending: (first, how many in a row)."""
        found: list[tuple[int, int]] = []
        for tile in sorted({block // tile_blocks for block in self._held.get(slot, ())}):
            if found and tile == sum(found[-1]):
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((tile, 1))
        return tuple(found)

    def room(self, slot: int) -> int:
        """How many tokens the slot could hold in all if it got every free block."""
        return (self.num_held(slot) + self.num_free) * self.block_size

    def grow(self, slot: int, num_tokens: int) -> None:
        """Let the slot hold `num_tokens` in all. The caller has asked `room`."""
        held = self._held.setdefault(slot, [])
        missing = self.blocks_for(num_tokens) - len(held)
        assert missing <= self.num_free, f"slot {slot} needs {missing} blocks, {self.num_free} are free"
        for _ in range(missing):
            block = self._free.pop()
            self._num_holders[block] = 1
            held.append(block)

    def shrink(self, slot: int, num_tokens: int) -> None:
        """Let the slot hold `num_tokens` in all; the blocks that it gives back must not be shared."""
        held = self._held[slot]
        while len(held) > self.blocks_for(num_tokens):
            block = held.pop()
            assert self._num_holders[block] == 1, f"slot {slot} gives up a block that others hold"
            self._num_holders[block] = 0
            self._free.append(block)

    def share(self, source: int, slot: int, num_tokens: int) -> None:
        """Let an empty slot hold the whole blocks of the source's first `num_tokens` too, without copying."""
        assert not self._held.get(slot), f"slot {slot} holds blocks already"
        shared = self._held[source][: num_tokens // self.block_size]
        for block in shared:
            self._num_shared += self._num_holders[block] == 1
            self._num_holders[block] += 1
        self._held[slot] = list(shared)

    def free(self, slot: int) -> None:
        for block in self._held.pop(slot, ()):
            self._num_holders[block] -= 1
            self._num_shared -= self._num_holders[block] == 1
            if self._num_holders[block] == 0:
                self._free.append(block)

    def check(self, computed: dict[int, int]) -> None:
        """Assert that the books balance; `computed` tells how many tokens each running slot has cells for."""
        assert all(len(set(blocks)) == len(blocks) for blocks in self._held.values()), (
            "a block twice in one slot"
        )
        holders, free = Counter(chain.from_iterable(self._held.values())), set(self._free)
        assert all(self._num_holders[block] == number for block, number in holders.items())
        assert self._num_holders.count(0) == len(free) == len(self._free)
        assert len(holders) + len(free) == self.num_blocks
        assert holders.keys().isdisjoint(free)
        assert self._num_shared == sum(number > 1 for number in holders.values())
        assert set(self._held) <= set(computed), f"blocks of slots not running: {self._held.keys()}"
        for slot, num_tokens in computed.items():
            assert self.num_held(slot) >= self.blocks_for(num_tokens), f"slot {slot} holds too little"
