"""Index of the prefix cache. It names blocks and states by number; the backend holds their bytes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import NamedTuple

from openai_cpu_server.contract.replica import BLOCK_TOKENS, PrefixNews, block_hash, root_hash
from openai_cpu_server.contract.step import SavedBlock

Tokens = tuple[int, ...]
_STRIDE = 64
"""Tokens compared at once; any number of this order will do."""


@dataclass(eq=False)
class Branch:
    """Root of a namespace, or end of a block, where further blocks begin."""

    name: int = field(kw_only=True)
    """Name of the prefix, equal on all machines (`contract.replica`)."""
    children: dict[Tokens, Block] = field(default_factory=dict)
    ordered: list[Tokens] = field(default_factory=list)
    """Sorted: the longest common prefix is next to some tokens' position."""
    num_parts: int = 0

    def closest(self, tokens: Tokens) -> tuple[Block | None, int]:
        """Return the child with the longest common prefix, and its length; else (None, 0)."""
        if not tokens:
            return None, 0
        at = bisect_left(self.ordered, tokens)
        neighbours = self.ordered[max(0, at - 1) : at + 1]
        common, best = max(((common_prefix(tokens, key), key) for key in neighbours), default=(0, ()))
        return (self.children[best], common) if common else (None, 0)

    def part_of(self, tokens: Tokens) -> Block | None:
        """Return the longest incomplete child that these tokens begin with."""
        if not self.num_parts:
            return None
        most = min(len(tokens), BLOCK_TOKENS - 1)
        beginnings = (self.children.get(tokens[:length]) for length in range(most, 0, -1))
        return next((block for block in beginnings if block is not None), None)


@dataclass(eq=False)
class _Root(Branch):
    namespace: str = field(kw_only=True)


@dataclass(eq=False)
class Block(Branch):
    """Block without children unless it is complete; only the last of a text is incomplete."""

    number: int = field(kw_only=True)
    tokens: Tokens = field(kw_only=True)
    parent: Branch = field(kw_only=True)
    state: int | None = None
    gain: int = 0
    """Tokens that the state saved when it was added, compared with the previous state."""

    @property
    def is_whole(self) -> bool:
        return len(self.tokens) == BLOCK_TOKENS

    @property
    def is_in_vain(self) -> bool:
        """True if the block leads to no state."""
        return not self.children and self.state is None

    def path(self) -> list[Block]:
        found, branch = [], self.parent
        found.append(self)
        while isinstance(branch, Block):
            found.append(branch)
            branch = branch.parent
        return found


class PrefixJournal(dict[int, bool]):
    """Changed whole blocks by name: True if saved now. A block added and removed counts as removed."""

    def take(self) -> PrefixNews | None:
        if not self:
            return None
        news = PrefixNews(
            saved=tuple(name for name, is_saved in self.items() if is_saved),
            dropped=tuple(name for name, is_saved in self.items() if not is_saved),
        )
        self.clear()
        return news


class BlockTree:
    def __init__(self, journal: PrefixJournal | None) -> None:
        self._journal = journal
        self._roots: dict[str, _Root] = {}
        self._num_blocks = 0

    def __len__(self) -> int:
        return self._num_blocks

    def __iter__(self) -> Iterator[tuple[str, Block]]:
        """Yield each block with its namespace, parents before children."""
        for namespace, root in self._roots.items():
            stack: list[Branch] = [root]
            while stack:
                for block in stack.pop().children.values():
                    yield namespace, block
                    stack.append(block)

    def whole_blocks(self, tokens: Sequence[int], namespace: str, limit: int) -> list[Block]:
        branch: Branch | None = self._roots.get(namespace)
        path: list[Block] = []
        while branch is not None and (len(path) + 1) * BLOCK_TOKENS <= limit:
            start = len(path) * BLOCK_TOKENS
            branch = child = branch.children.get(tuple(tokens[start : start + BLOCK_TOKENS]))
            if child is not None:
                path.append(child)
        return path

    def behind(self, path: Sequence[Block], namespace: str) -> Branch:
        return path[-1] if path else self._roots.get(namespace) or _NOWHERE

    def add(self, number: int, tokens: Tokens, parent: Block | None, namespace: str) -> Block:
        branch: Branch | None = parent or self._roots.get(namespace)
        if branch is None:
            branch = self._roots[namespace] = _Root(namespace=namespace, name=root_hash(namespace))
        name = block_hash(branch.name, tokens)
        block = Block(number=number, tokens=tokens, parent=branch, name=name)
        branch.children[tokens] = block
        branch.num_parts += not block.is_whole
        insort(branch.ordered, tokens)
        self._num_blocks += 1
        if self._journal is not None and block.is_whole:
            self._journal[name] = True
        return block

    def remove(self, block: Block) -> None:
        assert not block.children, "only leaves go"
        self._num_blocks -= 1
        del block.parent.children[block.tokens]
        block.parent.num_parts -= not block.is_whole
        block.parent.ordered.remove(block.tokens)
        if self._journal is not None and block.is_whole:
            self._journal[block.name] = False
        if isinstance(block.parent, _Root) and not block.parent.children:
            del self._roots[block.parent.namespace]

    def check(self) -> None:
        assert all(root.children for root in self._roots.values()), "a namespace without blocks stays"
        blocks = [block for _, block in self]
        assert len(blocks) == len(self) == len({block.number for block in blocks})
        for branch in (*self._roots.values(), *blocks):
            assert branch.ordered == sorted(branch.children)
            assert branch.num_parts == sum(not child.is_whole for child in branch.children.values())
        for block in blocks:
            assert is_block(block.tokens)
            assert block.is_whole or not block.children, "only whole blocks have children"


_NOWHERE = Branch(name=0)


def is_block(tokens: Tokens) -> bool:
    return 0 < len(tokens) <= BLOCK_TOKENS


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Comparing many tokens at once is fast in Python."""
    length, at = min(len(a), len(b)), 0
    while at < length and tuple(a[at : at + _STRIDE]) == tuple(b[at : at + _STRIDE]):
        at += _STRIDE
    while at < length and a[at] == b[at]:
        at += 1
    return min(at, length)


_LEAST_GAIN = 16
"""Minimum tokens behind the previous state to save one."""
_LEAST_RECENT = 16
"""Least recent states among which the one that saves the fewest tokens per byte goes."""


@dataclass(frozen=True)
class PrefixMatch:
    """All of `blocks`, and the first `tail_tokens` of the block `tail`."""

    blocks: tuple[int, ...] = ()
    tail: int | None = None
    tail_tokens: int = 0
    state: int | None = None
    longest: int = 0
    """Longest saved prefix, with or without a state at its end."""

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + self.tail_tokens


@dataclass(frozen=True)
class PrefixInsertion:
    saved: tuple[tuple[int, int, int], ...]
    """New blocks: (number, first position, position behind the last)."""
    dropped: tuple[int, ...]
    state: int | None = None


class CacheTotals(NamedTuple):
    cache_blocks: int
    cache_states: int
    cache_evictions: int
    cache_bytes: int
    cache_capacity_bytes: int
    cache_capacity_blocks: int
    """Blocks that fit without states, or 0 if blocks have no size."""


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
        """Evictable blocks, or those with a state, least recent first."""
        self.pinned: dict[int, Block] = {}
        self.block_bytes = block_bytes
        self.state_bytes = state_bytes

    @property
    def used(self) -> int:
        return len(self.tree) * self.block_bytes + self.num_states * self.state_bytes

    def has_room(self, block: SavedBlock) -> bool:
        num_bytes = self.block_bytes + (self.state_bytes if block.state is not None else 0)
        return self.used + num_bytes <= self.capacity

    def has_room_behind(self, path: list[Block], num_tokens: int) -> bool:
        """Count everything but the path and pinned prefixes as evicted."""
        staying = {block.number for last in (*self.pinned.values(), *path[-1:]) for block in last.path()}
        num_blocks = len(staying) + -(-num_tokens // BLOCK_TOKENS) - len(path)
        num_states = len(self.pinned) + sum(block.state is not None for block in path) + 1
        return num_blocks * self.block_bytes + num_states * self.state_bytes <= self.capacity

    def begin_at(self, block: Block, state: int, gain: int) -> None:
        block.state, block.gain = state, gain
        self.num_states += 1
        self.recency[block.number] = block

    def touch(self, path: Sequence[Block]) -> None:
        """Count a use. If there are states, only the last block counts."""
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

    def make_room(self, num_bytes: int, keep: Sequence[Block], evicted: list[int]) -> bool:
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

        def worth(block: Block) -> float:
            own = 0 if block.children else -(-block.gain // BLOCK_TOKENS)
            return block.gain / (self.state_bytes + own * self.block_bytes)

        return min(islice(others, _LEAST_RECENT), key=worth, default=None)

    def evict(self, block: Block, keep: Sequence[Block]) -> list[int]:
        """Remove a block, or its state and all blocks that then lead to no other."""
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
    """Tree of blocks per namespace, evicted least recent first: leaves, because a parent is always more
    recent. With states, states are evicted, with the blocks that lead to no other."""

    def __init__(
        self,
        capacity: int,
        *,
        block_bytes: int = 1,
        state_bytes: int = 0,
        journal: PrefixJournal | None = None,
    ) -> None:
        self.has_states = state_bytes > 0
        self._books = _Books(capacity, block_bytes, state_bytes, journal)
        self._next_number = 0

    @property
    def totals(self) -> CacheTotals:
        books = self._books
        num_blocks = books.capacity // books.block_bytes if books.block_bytes else 0
        counts = (len(books.tree), books.num_states, books.num_evictions)
        return CacheTotals(*counts, books.used, books.capacity, num_blocks)

    @property
    def num_pinned(self) -> int:
        return len(self._books.pinned)

    def __len__(self) -> int:
        return len(self._books.tree)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
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
        """Add the unsaved blocks as far as they fit, but all or nothing for a state; `pin` protects them from
        eviction. An incomplete last block is replaced by the next block that begins with it."""
        path = self._held(tokens, namespace)
        self._books.touch(path)
        saved: list[tuple[int, int, int]] = []
        dropped: list[int] = []
        state = None
        gain = self._gain(path, tokens, namespace, pin=pin) if self.has_states else 0
        if not self.has_states or (gain and self._books.has_room_behind(path, len(tokens))):
            while len(path) * BLOCK_TOKENS < len(tokens) and self._books.make_room(
                self._books.block_bytes, path, dropped
            ):
                start = len(path) * BLOCK_TOKENS
                piece, parent = tuple(tokens[start : start + BLOCK_TOKENS]), path[-1] if path else None
                block = self._books.attach(self._number(), piece, parent, namespace)
                path.append(block)
                dropped += self._supersede(block)
                saved.append((block.number, start, start + len(block.tokens)))
            if gain and self._books.make_room(self._books.state_bytes, path, dropped):
                state = self._number()
                self._books.begin_at(path[-1], state, gain)
            self._books.touch(path)
        if pin:
            self._books.pin(path)
        return PrefixInsertion(tuple(saved), tuple(dropped), state)

    def export(self) -> list[SavedBlock]:
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
        """Return the numbers of blocks and states that do not fit."""
        adopted: dict[int, Block] = {}
        refused: list[int] = []
        for block in blocks:
            numbers = [block.number] if block.state is None else [block.number, block.state]
            parent = adopted.get(block.parent) if block.parent is not None else None
            has_parent = block.parent is None or (parent is not None and parent.is_whole)
            is_fit = is_block(block.tokens) and (block.state is None or self.has_states)
            if not (has_parent and is_fit and self._books.has_room(block)):
                refused += numbers
                continue
            added = adopted[block.number] = self._books.attach(
                block.number, block.tokens, parent, block.namespace
            )
            if block.state is not None:
                behind = takewhile(lambda one: one.state is None, added.path())
                self._books.begin_at(added, block.state, sum(len(one.tokens) for one in behind))
            self._next_number = max(self._next_number, *(number + 1 for number in numbers))
        # `touch` goes backwards: children first, then their parents, which must be more recent.
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
        """A last block with a state must have exactly the last tokens."""
        path = self._books.tree.whole_blocks(tokens, namespace, len(tokens))
        branch = self._books.tree.behind(path, namespace)
        rest = tuple(tokens[len(path) * BLOCK_TOKENS :])
        last, common = branch.closest(rest)
        if self.has_states:
            last = branch.children.get(rest)
        return [*path, last] if last and common == len(rest) else path

    def _last_state(
        self, path: list[Block], tokens: Sequence[int], namespace: str, limit: int, longest: int
    ) -> PrefixMatch:
        while True:
            start = len(path) * BLOCK_TOKENS
            rest = tuple(tokens[start : min(start + BLOCK_TOKENS, limit)])
            part = self._books.tree.behind(path, namespace).part_of(rest)
            if part is not None:
                return PrefixMatch(_numbers(path), part.number, len(part.tokens), part.state, longest)
            if not path:
                return PrefixMatch(longest=longest)
            if path[-1].state is not None:
                return PrefixMatch(_numbers(path), state=path[-1].state, longest=longest)
            path = path[:-1]

    def _gain(self, path: list[Block], tokens: Sequence[int], namespace: str, *, pin: bool) -> int:
        """Tokens that a state would save, or 0 if it exists or they are too few."""
        is_there = bool(path) and path[-1].state is not None
        if not tokens or (is_there and sum(len(block.tokens) for block in path) == len(tokens)):
            return 0
        gain = len(tokens) - self.match(tokens, namespace, len(tokens) - 1).num_tokens
        return gain if gain >= _LEAST_GAIN or pin else 0

    def _supersede(self, block: Block) -> list[int]:
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


def _numbers(path: Sequence[Block]) -> tuple[int, ...]:
    return tuple(block.number for block in path)
