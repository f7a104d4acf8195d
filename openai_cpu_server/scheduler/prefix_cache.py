"""Index of the prefix cache. It knows which runs of tokens have KV cells in host memory, and at which of
their ends the state of a recurrent or hybrid memory is saved.

Pure: the index names blocks and states by number. The backend holds their bytes, and verbs refer to the
numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.step import SavedBlock
from openai_cpu_server.scheduler.prefix_tree import Block, BlockTree, PrefixJournal, is_block

_LEAST_GAIN = 16
"""Minimum tokens behind the previous state that make a state worth saving, because fewer are computed in a
moment."""
_LEAST_RECENT = 16
"""Number of least recently used states among which the one that saves the fewest tokens per byte is
evicted."""


@dataclass(frozen=True)
class PrefixMatch:
    """Longest saved prefix that a sequence can begin with: all of `blocks`, and the first `tail_tokens` of
    the block `tail`."""

    blocks: tuple[int, ...] = ()
    tail: int | None = None
    tail_tokens: int = 0
    state: int | None = None
    known: int = 0
    """With states: length of the longest saved prefix, with or without a state at its end."""

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + self.tail_tokens


@dataclass(frozen=True)
class PrefixInsertion:
    """New blocks (number, first position, position behind the last), the number of the new state at their
    end, and the numbers of evicted ones."""

    saved: tuple[tuple[int, int, int], ...]
    dropped: tuple[int, ...]
    state: int | None = None


class CacheTotals(NamedTuple):
    blocks: int
    states: int
    evictions: int
    used_bytes: int
    capacity_bytes: int
    capacity_blocks: int
    """Number of blocks that fit without states, or 0 if blocks have no size."""


class _Books:
    def __init__(
        self, capacity: int, block_bytes: int, state_bytes: int, journal: PrefixJournal | None
    ) -> None:
        self.capacity = capacity
        self.num_states = 0
        self.num_evictions = 0
        self.has_states = state_bytes > 0
        self.tree = BlockTree(journal)
        self.recency: OrderedDict[int, Block] = OrderedDict()
        """Evictable blocks, least recent first: all but pinned ones, or those with a state."""
        self.pinned: dict[int, Block] = {}
        self._block_bytes = block_bytes
        self._state_bytes = state_bytes

    def totals(self) -> CacheTotals:
        num_blocks = self.capacity // self._block_bytes if self._block_bytes else 0
        return CacheTotals(
            len(self.tree), self.num_states, self.num_evictions, self.used, self.capacity, num_blocks
        )

    @property
    def used(self) -> int:
        return len(self.tree) * self._block_bytes + self.num_states * self._state_bytes

    def has_room(self, block: SavedBlock) -> bool:
        num_bytes = self._block_bytes + (self._state_bytes if block.state is not None else 0)
        return self.used + num_bytes <= self.capacity

    def has_room_behind(self, path: list[Block], num_tokens: int) -> bool:
        """Return True if blocks up to `num_tokens` and a state fit after eviction of everything but the
        path, pinned blocks and their parents."""
        num_new = -(-num_tokens // BLOCK_TOKENS) - len(path)
        kept = {block.number for last in (*self.pinned.values(), *path[-1:]) for block in last.path()}
        num_states = len(self.pinned) + sum(block.state is not None for block in path)
        kept_bytes = (len(kept) + num_new) * self._block_bytes + (num_states + 1) * self._state_bytes
        return kept_bytes <= self.capacity

    def begin_at(self, block: Block, state: int, gain: int) -> None:
        block.state, block.gain = state, gain
        self.num_states += 1
        self.recency[block.number] = block

    def touch(self, path: Sequence[Block]) -> None:
        """With states only the block at which a sequence begins counts as used; otherwise all blocks of
        the path do."""
        for node in path[-1:] if self.has_states else reversed(path):
            if node.number in self.recency:
                self.recency.move_to_end(node.number)

    def attach(self, number: int, tokens: tuple[int, ...], parent: Block | None, namespace: str) -> Block:
        block = self.tree.add(number, tokens, parent, namespace)
        if not self.has_states:
            self.recency[number] = block
        return block

    def worth_most_first(self) -> list[Block]:
        ordered: dict[int, Block] = {}
        for last in (*self.pinned.values(), *reversed(self.recency.values())):
            path: list[Block] = []
            one: object = last
            while isinstance(one, Block) and one.number not in ordered:
                path.append(one)
                one = one.parent
            ordered.update((block.number, block) for block in reversed(path))
        return [*ordered.values()]

    def make_room_for_block(self, keep: Sequence[Block], evicted: list[int]) -> bool:
        return self._make_room(self._block_bytes, keep, evicted)

    def make_room_for_state(self, keep: Sequence[Block], evicted: list[int]) -> bool:
        return self._make_room(self._state_bytes, keep, evicted)

    def _make_room(self, num_bytes: int, keep: Sequence[Block], evicted: list[int]) -> bool:
        """Evict until `num_bytes` are free, except for blocks of `keep`; return False if that fails. The
        numbers of evicted blocks are added to `evicted`."""
        while self.used + num_bytes > self.capacity:
            victim = self._victim(keep)
            if victim is None:
                return False
            evicted += self.evict(victim, keep)
            self.num_evictions += 1
        return True

    def _victim(self, keep: Sequence[Block]) -> Block | None:
        if not self.has_states:
            oldest = next(iter(self.recency.values()), None)
            return None if oldest is None or oldest in keep or oldest.children else oldest
        others = (block for block in self.recency.values() if block not in keep)
        return min(islice(others, _LEAST_RECENT), key=self._worth, default=None)

    def _worth(self, block: Block) -> float:
        """Tokens that the state saves per byte that its eviction frees."""
        own = 0 if block.children else -(-block.gain // BLOCK_TOKENS)
        return block.gain / (self._state_bytes + own * self._block_bytes)

    def evict(self, block: Block, keep: Sequence[Block]) -> list[int]:
        """Remove a block, or its state and all blocks that then lead to no other. Return the numbers."""
        if block.state is None:
            self.remove(block)
            return [block.number]
        number, block.state = block.state, None
        del self.recency[block.number]
        self.num_states -= 1
        return [number, *self.prune(block, keep)]

    def prune(self, block: Block, keep: Sequence[Block]) -> list[int]:
        removed = []
        for one in block.path():
            if not one.is_in_vain or one in keep:
                break
            self.remove(one)
            removed.append(one.number)
        return removed

    def remove(self, block: Block) -> None:
        self.recency.pop(block.number, None)
        self.tree.remove(block)

    def pin(self, path: Sequence[Block]) -> None:
        for node in path:
            if node.number in self.recency:
                del self.recency[node.number]
                self.pinned[node.number] = node


class SavedPrefixes:
    """Tree of blocks per namespace (cache salt, API key), and the places in it where sequences can begin.

    A sequence can begin behind any saved token or, if the memory has states, where one is saved. Those places
    are evicted, least recent first. Without states they are blocks: a parent is always more recent than its
    children, so the least recent one is a leaf. With states they are states, together with blocks that lead
    to no other state.
    """

    def __init__(
        self,
        capacity: int,
        *,
        block_bytes: int = 1,
        state_bytes: int = 0,
        journal: PrefixJournal | None = None,
    ) -> None:
        """`capacity`: in bytes, with pinned blocks. `state_bytes`: size of a state, or 0 without states."""
        self.has_states = state_bytes > 0
        self._books = _Books(capacity, block_bytes, state_bytes, journal)
        self._next_number = 0

    @property
    def totals(self) -> CacheTotals:
        return self._books.totals()

    @property
    def num_pinned(self) -> int:
        return len(self._books.pinned)

    def __len__(self) -> int:
        return len(self._books.tree)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
        """Return the longest saved prefix of at most `limit` tokens, without changing anything."""
        path = self._books.tree.whole_blocks(tokens, namespace, limit)
        start = len(path) * BLOCK_TOKENS
        rest = tuple(tokens[start : min(start + BLOCK_TOKENS, limit)])
        tail, tail_tokens = self._books.tree.behind(path, namespace).closest(rest)
        if self.has_states:
            return self._last_state(path, tokens, namespace, limit, start + tail_tokens)
        return PrefixMatch(_numbers(path), tail.number if tail else None, tail_tokens)

    def use(self, tokens: Sequence[int], namespace: str) -> None:
        self._books.touch(self._held(tokens, namespace))

    def insert(self, tokens: Sequence[int], namespace: str, *, pin: bool = False) -> PrefixInsertion:
        """Add the unsaved blocks of `tokens` as far as they fit; `pin` protects the whole prefix from
        eviction.

        An incomplete last block is replaced by the next block that begins with it. With states, either the
        state and all blocks that lead to it are added, or nothing is.
        """
        path = self._held(tokens, namespace)
        self._books.touch(path)
        saved: list[tuple[int, int, int]] = []
        dropped: list[int] = []
        state = None
        gain = self._gain(path, tokens, namespace, pin=pin) if self.has_states else 0
        if not self.has_states or (gain and self._books.has_room_behind(path, len(tokens))):
            while len(path) * BLOCK_TOKENS < len(tokens) and self._books.make_room_for_block(path, dropped):
                start = len(path) * BLOCK_TOKENS
                block = self._add(path, tuple(tokens[start : start + BLOCK_TOKENS]), namespace)
                dropped += self._supersede(block)
                saved.append((block.number, start, start + len(block.tokens)))
            if gain and self._books.make_room_for_state(path, dropped):
                state = self._number()
                self._books.begin_at(path[-1], state, gain)
            self._books.touch(path)
        if pin:
            self._books.pin(path)
        return PrefixInsertion(tuple(saved), tuple(dropped), state)

    def export(self) -> list[SavedBlock]:
        """Return all blocks, parents before children, in the order of their worth."""
        namespaces = {block.number: namespace for namespace, block in self._books.tree}
        return [
            SavedBlock(
                block.number,
                block.parent.number if isinstance(block.parent, Block) else None,
                namespaces[block.number],
                block.tokens,
                block.state,
            )
            for block in self._books.worth_most_first()
        ]

    def adopt(self, blocks: Sequence[SavedBlock]) -> tuple[int, ...]:
        """Add blocks of `export`. Return the numbers of blocks and states that do not fit."""
        adopted: dict[int, Block] = {}
        refused: list[int] = []
        for block in blocks:
            numbers = [block.number] if block.state is None else [block.number, block.state]
            parent = adopted.get(block.parent) if block.parent is not None else None
            if not self._can_adopt(block, parent):
                refused += numbers
                continue
            added = adopted[block.number] = self._books.attach(
                block.number, block.tokens, parent, block.namespace
            )
            if block.state is not None:
                before = [len(one.tokens) for one in added.path()]
                known = next((i for i, one in enumerate(added.path()) if one.state is not None), None)
                self._books.begin_at(added, block.state, sum(before[:known]))
            self._next_number = max(self._next_number, *(number + 1 for number in numbers))
        # `_touch` goes backwards: children first, then their parents, which must be more recent.
        self._books.touch(list(adopted.values()))
        if self.has_states:
            for leaf in [one for one in adopted.values() if one.is_in_vain]:
                refused += self._books.prune(leaf, ())
        return tuple(refused)

    def clear(self) -> tuple[int, ...]:
        dropped: list[int] = []
        while self._books.recency:
            dropped += self._books.evict(next(iter(self._books.recency.values())), ())
        return tuple(dropped)

    def check(self) -> None:
        self._books.tree.check()
        blocks = [block for _, block in self._books.tree]
        beginnings = {b.number for b in blocks if b.state is not None or not self.has_states}
        assert beginnings == set(self._books.recency) | set(self._books.pinned)
        states = {block.state for block in blocks if block.state is not None}
        assert len(states) == self._books.num_states
        assert states.isdisjoint(block.number for block in blocks)
        assert self._books.used <= self._books.capacity
        rank = {number: i for i, number in enumerate(self._books.recency)}
        for block in blocks:
            parent = block.parent
            if self.has_states:
                assert not block.is_in_vain
            elif isinstance(parent, Block) and parent.number in rank and block.number in rank:
                assert rank[parent.number] > rank[block.number], "a child is more recent than its parent"

    def _held(self, tokens: Sequence[int], namespace: str) -> list[Block]:
        """With states only a last block with exactly the last tokens counts, because a state is at the end
        of a block."""
        path = self._books.tree.whole_blocks(tokens, namespace, len(tokens))
        branch = self._books.tree.behind(path, namespace)
        rest = tuple(tokens[len(path) * BLOCK_TOKENS :])
        last, common = branch.closest(rest)
        if self.has_states:
            last = branch.children.get(rest)
        return [*path, last] if last and common == len(rest) else path

    def _last_state(
        self, path: list[Block], tokens: Sequence[int], namespace: str, limit: int, known: int
    ) -> PrefixMatch:
        while True:
            start = len(path) * BLOCK_TOKENS
            rest = tuple(tokens[start : min(start + BLOCK_TOKENS, limit)])
            part = self._books.tree.behind(path, namespace).part_of(rest)
            if part is not None:
                return PrefixMatch(_numbers(path), part.number, len(part.tokens), part.state, known)
            if not path:
                return PrefixMatch(known=known)
            if path[-1].state is not None:
                return PrefixMatch(_numbers(path), state=path[-1].state, known=known)
            path = path[:-1]

    def _gain(self, path: list[Block], tokens: Sequence[int], namespace: str, *, pin: bool) -> int:
        """Tokens that a state behind `tokens` would save, or 0 if it exists or they are too few."""
        is_there = bool(path) and path[-1].state is not None
        if not tokens or (is_there and sum(len(block.tokens) for block in path) == len(tokens)):
            return 0
        gain = len(tokens) - self.match(tokens, namespace, len(tokens) - 1).num_tokens
        return gain if gain >= _LEAST_GAIN or pin else 0

    def _supersede(self, block: Block) -> list[int]:
        """Remove the blocks that the new `block` begins with, except for pinned ones."""
        if self.has_states:
            return []
        beginnings = (block.tokens[:length] for length in range(1, len(block.tokens)))
        held = [block.parent.children[tokens] for tokens in beginnings if tokens in block.parent.children]
        removed = [shorter for shorter in held if shorter.number in self._books.recency]
        for shorter in removed:
            self._books.remove(shorter)
        return [shorter.number for shorter in removed]

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _add(self, path: list[Block], tokens: tuple[int, ...], namespace: str) -> Block:
        block = self._books.attach(self._number(), tokens, path[-1] if path else None, namespace)
        path.append(block)
        return block

    def _can_adopt(self, block: SavedBlock, parent: Block | None) -> bool:
        has_parent = block.parent is None or (parent is not None and parent.is_whole)
        is_fit = is_block(block.tokens) and (block.state is None or self.has_states)
        return has_parent and is_fit and self._books.has_room(block)


def _numbers(path: Sequence[Block]) -> tuple[int, ...]:
    return tuple(block.number for block in path)
