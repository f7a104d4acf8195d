"""The index of the prefix cache: it knows which runs of tokens have their KV cells saved in host memory, and
at which of their ends the state is saved that recurrent and hybrid memories have beside their cells.

It is pure and knows blocks and states by number. The backend holds their bytes; verbs tell it which.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from openai_cpu_server.contract.replica import BLOCK_TOKENS, PrefixNews, block_hash, root_hash
from openai_cpu_server.contract.step import SavedBlock

Tokens = tuple[int, ...]
_STRIDE = 64
"""Tokens that are compared at once; any number of this order does."""
LEAST_STATE_TOKENS = 64
"""A state is saved where a sequence has computed so many tokens since it began, or since the last one: tokens
that are computed again in the time of a few steps are not worth the megabytes of a state."""
_LEAST_RECENT = 16
"""Of so many states that were used longest ago the one goes first that saves the fewest tokens per byte."""


@dataclass(eq=False)
class _Branch:
    """A place where blocks begin: the root of a namespace, or the end of another block."""

    name: int = field(kw_only=True)
    """Names the tokens up to here, as other machines know them (`contract.replica`)."""
    children: dict[Tokens, _Block] = field(default_factory=dict)
    ordered: list[Tokens] = field(default_factory=list)
    """The keys of `children`, sorted: the one most like some tokens is next to where those would stand."""


@dataclass(eq=False)
class _Root(_Branch):
    namespace: str = field(kw_only=True)


@dataclass(eq=False)
class _Block(_Branch):
    """Only whole blocks have children. The last block of a text may have fewer tokens."""

    number: int = field(kw_only=True)
    tokens: Tokens = field(kw_only=True)
    parent: _Branch = field(kw_only=True)
    state: int | None = None
    """The number of the state that is saved at its end."""
    gain: int = 0
    """How many tokens that state saved when it came, against the one before it."""


@dataclass(frozen=True)
class PrefixMatch:
    """The longest saved prefix that a sequence can begin with: all of `blocks`, and the first `tail_tokens`
    of the block `tail`."""

    blocks: tuple[int, ...] = ()
    tail: int | None = None
    tail_tokens: int = 0
    state: int | None = None
    """The state at its end, where the memory has one."""
    known: int = 0
    """Where there are states: the tokens up to where they part from all that is saved."""

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + self.tail_tokens


@dataclass(frozen=True)
class PrefixInsertion:
    """The new blocks (number, position of the first token, position behind the last), the number of the new
    state at their end, and the numbers of those that go for them."""

    saved: tuple[tuple[int, int, int], ...]
    dropped: tuple[int, ...]
    state: int | None = None


class PrefixJournal:
    """Collects which whole blocks came and went, for those who choose between engines."""

    def __init__(self) -> None:
        self._changes: dict[int, bool] = {}
        """By name, whether the block is saved now. One that came and went is told as gone."""

    def saved(self, name: int) -> None:
        self._changes[name] = True

    def dropped(self, name: int) -> None:
        self._changes[name] = False

    def take(self) -> PrefixNews | None:
        """What has changed since the last call; None: nothing has."""
        changes, self._changes = self._changes, {}
        if not changes:
            return None
        return PrefixNews(
            saved=tuple(name for name, is_saved in changes.items() if is_saved),
            dropped=tuple(name for name, is_saved in changes.items() if not is_saved),
        )


class SavedPrefixes:
    """A tree of blocks per namespace (cache salt, API key), compared token by token.

    A sequence can begin behind any saved token, or, where the memory has a state, where one is saved. What
    can be evicted are these beginnings, the least recent first: blocks, of which a parent is always more
    recent than its children, so that the least recent one is a leaf; or states, with the blocks that lead to
    no other one.
    """

    def __init__(
        self,
        capacity: int,
        *,
        block_bytes: int = 1,
        state_bytes: int = 0,
        journal: PrefixJournal | None = None,
    ) -> None:
        """A cache of `capacity` bytes, pinned blocks included.

        `state_bytes`: of a state; 0: the memory has none. `journal`: what is to be told of the changes; None:
        nobody is told.
        """
        self.capacity = capacity
        self.used = 0
        """Bytes of its blocks and states."""
        self.num_states = 0
        self.num_evictions = 0
        self.has_states = state_bytes > 0
        self._block_bytes = block_bytes
        self._state_bytes = state_bytes
        self._roots: dict[str, _Root] = {}
        self._num_blocks = 0
        self._recency: OrderedDict[int, _Block] = OrderedDict()
        """What can be evicted: all blocks but pinned ones, or those with a state."""
        self._pinned: dict[int, _Block] = {}
        self._next_number = 0
        self._journal = journal

    @property
    def capacity_blocks(self) -> int:
        """For how many blocks there would be room without states; 0 where blocks take none."""
        return self.capacity // self._block_bytes if self._block_bytes else 0

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def __len__(self) -> int:
        return self._num_blocks

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
        """The longest saved prefix of at most `limit` tokens to begin with. Changes nothing."""
        path = self._path(tokens, namespace, limit)
        branch = path[-1] if path else self._roots.get(namespace)
        start = len(path) * BLOCK_TOKENS
        tail, tail_tokens = _closest(branch, tuple(tokens[start : min(start + BLOCK_TOKENS, limit)]))
        known = start + tail_tokens
        if self.has_states:
            return self._last_state(path, tokens, namespace, limit, known)
        return PrefixMatch(_numbers(path), tail.number if tail else None, tail_tokens)

    def use(self, tokens: Sequence[int], namespace: str) -> None:
        """A sequence begins behind this prefix: make it the most recent."""
        self._touch(self._held(tokens, namespace))

    def insert(self, tokens: Sequence[int], namespace: str, *, pin: bool = False) -> PrefixInsertion:
        """Take in the blocks of `tokens` that are not saved yet, as far as there is room.

        A last block that is not whole goes as soon as one comes that begins with it. With `pin`, all blocks
        of this prefix are never evicted. Where the memory has a state, it is taken in with all blocks that
        lead to it, or with none.
        """
        path = self._held(tokens, namespace)
        self._touch(path)
        dropped: list[int] = []
        gain = self._gain(path, tokens, namespace, pin=pin)
        if self.has_states and (not gain or not self._has_room_behind(path, len(tokens))):
            if pin:
                self._pin(path)
            return PrefixInsertion((), ())
        saved: list[tuple[int, int, int]] = []
        while len(path) * BLOCK_TOKENS < len(tokens) and self._make_room(self._block_bytes, path, dropped):
            start = len(path) * BLOCK_TOKENS
            block = self._add(path, tuple(tokens[start : start + BLOCK_TOKENS]), namespace)
            dropped += self._supersede(block)
            saved.append((block.number, start, start + len(block.tokens)))
        state = self._add_state(path, gain, dropped) if gain else None
        self._touch(path)
        if pin:
            self._pin(path)
        return PrefixInsertion(tuple(saved), tuple(dropped), state)

    def export(self) -> list[SavedBlock]:
        """All blocks, parents before children."""
        found: list[SavedBlock] = []
        for namespace, root in self._roots.items():
            stack: list[tuple[_Branch, int | None]] = [(root, None)]
            while stack:
                branch, parent = stack.pop()
                for block in branch.children.values():
                    found.append(SavedBlock(block.number, parent, namespace, block.tokens, block.state))
                    stack.append((block, block.number))
        return found

    def adopt(self, blocks: Sequence[SavedBlock]) -> tuple[int, ...]:
        """Take in blocks that `export` gave. Returns the numbers of those, and of states, for which there is
        no place."""
        adopted: dict[int, _Block] = {}
        parents: set[int | None] = {None}
        refused: list[int] = []
        for block in blocks:
            numbers = [block.number] if block.state is None else [block.number, block.state]
            cost = self._block_bytes + (self._state_bytes if block.state is not None else 0)
            is_fit = _is_block(block.tokens) and (block.state is None or self.has_states)
            if block.parent not in parents or not is_fit or self.used + cost > self.capacity:
                refused += numbers
                continue
            parent = self._root(block.namespace) if block.parent is None else adopted[block.parent]
            adopted[block.number] = added = self._attach(block.number, block.tokens, parent)
            if block.state is not None:
                before = (one for one in _upwards(added.parent) if one.state is not None)
                depth = sum(len(one.tokens) for one in _upwards(added))
                known = next((sum(len(one.tokens) for one in _upwards(last)) for last in before), 0)
                self._begin_at(added, block.state, depth - known)
            if len(block.tokens) == BLOCK_TOKENS:
                parents.add(block.number)
            self._next_number = max(self._next_number, *(number + 1 for number in numbers))
        # `_touch` goes backwards: children first, then their parents, which must be more recent.
        self._touch(list(adopted.values()))
        if self.has_states:
            for leaf in [one for one in adopted.values() if self._is_in_vain(one)]:
                refused += self._prune(leaf, ())
        return tuple(refused)

    def clear(self) -> tuple[int, ...]:
        """Forget all blocks that are not pinned. Returns their numbers."""
        dropped: list[int] = []
        while self._recency:
            dropped += self._evict(next(iter(self._recency.values())), ())
        return tuple(dropped)

    def check(self) -> None:
        """Assert that tree, recency and pins agree."""
        nodes = [node for root in self._roots.values() for node in _below(root)]
        beginnings = {n.number for n in nodes if n.state is not None or not self.has_states}
        assert beginnings == set(self._recency) | set(self._pinned)
        states = [n.state for n in nodes if n.state is not None]
        assert len(self) == len(nodes)
        assert len(states) == len(set(states)) == self.num_states
        assert self.used == len(nodes) * self._block_bytes + len(states) * self._state_bytes
        assert self.used <= self.capacity
        rank = {number: i for i, number in enumerate(self._recency)}
        assert all(root.children for root in self._roots.values()), "a namespace without blocks stays"
        for node in nodes:
            assert node.ordered == sorted(node.children)
            assert _is_block(node.tokens)
            assert len(node.tokens) == BLOCK_TOKENS or not node.children, "only whole blocks have children"
            parent = node.parent
            if self.has_states:
                assert node.children or node.state is not None, "a block leads to no state"
            elif isinstance(parent, _Block) and parent.number in rank and node.number in rank:
                assert rank[parent.number] > rank[node.number], "a child is more recent than its parent"

    def _path(self, tokens: Sequence[int], namespace: str, limit: int) -> list[_Block]:
        branch: _Branch | None = self._roots.get(namespace)
        path: list[_Block] = []
        while branch is not None and (len(path) + 1) * BLOCK_TOKENS <= limit:
            start = len(path) * BLOCK_TOKENS
            branch = child = branch.children.get(tuple(tokens[start : start + BLOCK_TOKENS]))
            if child is not None:
                path.append(child)
        return path

    def _held(self, tokens: Sequence[int], namespace: str) -> list[_Block]:
        """The blocks that hold `tokens` from the first on, the one that holds their last ones too.

        A state stands at the end of a block: only a last one with just these tokens will do.
        """
        path = self._path(tokens, namespace, len(tokens))
        rest = tuple(tokens[len(path) * BLOCK_TOKENS :])
        branch = path[-1] if path else self._roots.get(namespace)
        last, common = _closest(branch, rest)
        if self.has_states and branch is not None:
            last = branch.children.get(rest)
        return [*path, last] if last and common == len(rest) else path

    def _last_state(
        self, path: list[_Block], tokens: Sequence[int], namespace: str, limit: int, known: int
    ) -> PrefixMatch:
        """The match that ends with the last state on the path, or in a part of a block beside it."""
        while True:
            branch = path[-1] if path else self._roots.get(namespace)
            start = len(path) * BLOCK_TOKENS
            part = _part_with_state(branch, tuple(tokens[start : min(start + BLOCK_TOKENS - 1, limit)]))
            if part is not None:
                return PrefixMatch(_numbers(path), part.number, len(part.tokens), part.state, known)
            if not path:
                return PrefixMatch(known=known)
            if path[-1].state is not None:
                return PrefixMatch(_numbers(path), state=path[-1].state, known=known)
            path = path[:-1]

    def _gain(self, path: list[_Block], tokens: Sequence[int], namespace: str, *, pin: bool) -> int:
        """How many tokens a state behind `tokens` would save; 0: so few that it is not wanted, or it is
        there."""
        is_there = bool(path) and path[-1].state is not None and _num_tokens(path) == len(tokens)
        if not self.has_states or is_there or not tokens:
            return 0
        gain = len(tokens) - self.match(tokens, namespace, len(tokens) - 1).num_tokens
        return gain if gain >= LEAST_STATE_TOKENS or pin else 0

    def _has_room_behind(self, path: list[_Block], num_tokens: int) -> bool:
        """Whether blocks up to `num_tokens` and a state fit in, whoever has to go for them: all but the path,
        what is pinned, and what leads there."""
        num_new = -(-num_tokens // BLOCK_TOKENS) - len(path)
        kept = {block.number for last in (*self._pinned.values(), *path[-1:]) for block in _upwards(last)}
        num_states = len(self._pinned) + sum(block.state is not None for block in path)
        kept_bytes = (len(kept) + num_new) * self._block_bytes + (num_states + 1) * self._state_bytes
        return kept_bytes <= self.capacity

    def _add_state(self, path: list[_Block], gain: int, dropped: list[int]) -> int | None:
        """The number of a new state at the end of the path; None: there is no room."""
        if not self._make_room(self._state_bytes, path, dropped):
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        self._begin_at(path[-1], number, gain)
        return number

    def _begin_at(self, block: _Block, state: int, gain: int) -> None:
        block.state, block.gain = state, gain
        self.used += self._state_bytes
        self.num_states += 1
        self._recency[block.number] = block

    def _supersede(self, block: _Block) -> list[int]:
        """Remove the blocks that the new `block` begins with, but no pinned ones, and none with a state.
        Returns their numbers."""
        if self.has_states:
            return []
        beginnings = (block.tokens[:length] for length in range(1, len(block.tokens)))
        held = [block.parent.children[tokens] for tokens in beginnings if tokens in block.parent.children]
        removed = [shorter for shorter in held if shorter.number in self._recency]
        for shorter in removed:
            self._remove(shorter)
        return [shorter.number for shorter in removed]

    def _touch(self, path: Sequence[_Block]) -> None:
        """A state is used where a sequence begins; a block by all that go on behind it."""
        for node in path[-1:] if self.has_states else reversed(path):
            if node.number in self._recency:
                self._recency.move_to_end(node.number)

    def _add(self, path: list[_Block], tokens: Tokens, namespace: str) -> _Block:
        parent = path[-1] if path else self._root(namespace)
        block = self._attach(self._next_number, tokens, parent)
        self._next_number += 1
        path.append(block)
        return block

    def _root(self, namespace: str) -> _Root:
        if namespace not in self._roots:
            self._roots[namespace] = _Root(namespace=namespace, name=root_hash(namespace))
        return self._roots[namespace]

    def _attach(self, number: int, tokens: Tokens, parent: _Branch) -> _Block:
        name = block_hash(parent.name, tokens)
        block = _Block(number=number, tokens=tokens, parent=parent, name=name)
        parent.children[tokens] = block
        insort(parent.ordered, tokens)
        self._num_blocks += 1
        self.used += self._block_bytes
        if not self.has_states:
            self._recency[number] = block
        if self._journal is not None and len(tokens) == BLOCK_TOKENS:
            self._journal.saved(name)
        return block

    def _make_room(self, num_bytes: int, keep: Sequence[_Block], evicted: list[int]) -> bool:
        """Whether there is room for so many bytes more, after what is least worth its place is evicted.

        Blocks of `keep` stay. The numbers of what is evicted are added to `evicted`.
        """
        while self.used + num_bytes > self.capacity:
            victim = self._victim(keep)
            if victim is None:
                return False
            evicted += self._evict(victim, keep)
            self.num_evictions += 1
        return True

    def _victim(self, keep: Sequence[_Block]) -> _Block | None:
        if not self.has_states:
            oldest = next(iter(self._recency.values()), None)
            return None if oldest is None or oldest in keep or oldest.children else oldest
        others = (block for block in self._recency.values() if block not in keep)
        return min(islice(others, _LEAST_RECENT), key=self._worth, default=None)

    def _worth(self, block: _Block) -> float:
        """The tokens that its state saves for each byte that would become free with it."""
        own = 0 if block.children else -(-block.gain // BLOCK_TOKENS)
        return block.gain / (self._state_bytes + own * self._block_bytes)

    def _evict(self, block: _Block, keep: Sequence[_Block]) -> list[int]:
        """Remove a block, or its state and all blocks that then lead to no other. Returns the numbers."""
        if block.state is None:
            self._remove(block)
            return [block.number]
        number, block.state = block.state, None
        del self._recency[block.number]
        self.used -= self._state_bytes
        self.num_states -= 1
        return [number, *self._prune(block, keep)]

    @staticmethod
    def _is_in_vain(block: _Block) -> bool:
        """Whether it leads to no state."""
        return not block.children and block.state is None

    def _prune(self, block: _Block, keep: Sequence[_Block]) -> list[int]:
        """Remove the block and those before it, as far as they lead to no state and are not of `keep`."""
        removed = []
        branch: _Branch = block
        while isinstance(branch, _Block) and self._is_in_vain(branch) and branch not in keep:
            self._remove(branch)
            removed.append(branch.number)
            branch = branch.parent
        return removed

    def _remove(self, block: _Block) -> None:
        assert not block.children, "only leaves go"
        self._recency.pop(block.number, None)
        self._num_blocks -= 1
        self.used -= self._block_bytes
        del block.parent.children[block.tokens]
        block.parent.ordered.remove(block.tokens)
        if self._journal is not None and len(block.tokens) == BLOCK_TOKENS:
            self._journal.dropped(block.name)
        if isinstance(block.parent, _Root) and not block.parent.children:
            del self._roots[block.parent.namespace]

    def _pin(self, path: Sequence[_Block]) -> None:
        for node in path:
            if node.number in self._recency:
                del self._recency[node.number]
                self._pinned[node.number] = node


def _is_block(tokens: Tokens) -> bool:
    return 0 < len(tokens) <= BLOCK_TOKENS


def _numbers(path: Sequence[_Block]) -> tuple[int, ...]:
    return tuple(block.number for block in path)


def _num_tokens(path: Sequence[_Block]) -> int:
    return sum(len(block.tokens) for block in path)


def _upwards(branch: _Branch) -> Iterator[_Block]:
    """The block and all before it."""
    while isinstance(branch, _Block):
        yield branch
        branch = branch.parent


def _part_with_state(branch: _Branch | None, tokens: Tokens) -> _Block | None:
    """The longest block of the branch that these tokens begin with, and that is not whole."""
    if branch is None or all(len(key) == BLOCK_TOKENS for key in branch.ordered):
        return None
    beginnings = (branch.children.get(tokens[:length]) for length in range(len(tokens), 0, -1))
    return next((block for block in beginnings if block is not None), None)


def _closest(branch: _Branch | None, tokens: Tokens) -> tuple[_Block | None, int]:
    """The child with the longest common prefix with `tokens`, and that prefix's length; else (None, 0)."""
    if branch is None or not tokens:
        return None, 0
    at = bisect_left(branch.ordered, tokens)
    neighbours = branch.ordered[max(0, at - 1) : at + 1]
    common, best = max(((common_prefix(tokens, key), key) for key in neighbours), default=(0, ()))
    return (branch.children[best], common) if common else (None, 0)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix. It compares many tokens at once first, because that is fast in Python."""
    length, at = min(len(a), len(b)), 0
    while at < length and tuple(a[at : at + _STRIDE]) == tuple(b[at : at + _STRIDE]):
        at += _STRIDE
    while at < length and a[at] == b[at]:
        at += 1
    return min(at, length)


def _below(branch: _Branch) -> list[_Block]:
    found: list[_Block] = []
    stack = list(branch.children.values())
    while stack:
        found.append(stack.pop())
        stack.extend(found[-1].children.values())
    return found
