"""The index of the prefix cache: it knows which runs of tokens have their KV cells saved in host memory.

It is pure and knows blocks by number. The backend holds their bytes; `Save` and `Drop` verbs tell it which.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from openai_cpu_server.contract.replica import BLOCK_TOKENS, PrefixNews, block_hash, root_hash
from openai_cpu_server.contract.step import SavedBlock

Tokens = tuple[int, ...]
_STRIDE = 64
"""Tokens that are compared at once; any number of this order does."""


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


@dataclass(frozen=True)
class PrefixMatch:
    """The longest saved prefix: all of `blocks`, and the first `tail_tokens` of the block `tail`."""

    blocks: tuple[int, ...] = ()
    tail: int | None = None
    tail_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS + self.tail_tokens


@dataclass(frozen=True)
class PrefixInsertion:
    """The new blocks (number, position of the first token, position behind the last), and the numbers of
    those that go for them."""

    saved: tuple[tuple[int, int, int], ...]
    dropped: tuple[int, ...]


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

    A parent is always more recent than its children, so that the least recent block is a leaf. It is evicted
    first.
    """

    def __init__(self, capacity: int, *, journal: PrefixJournal | None = None) -> None:
        """`journal`: what is to be told of the changes; None: nobody is told."""
        self.capacity = capacity
        """How many blocks it holds at most, pinned ones included."""
        self.num_evictions = 0
        self._roots: dict[str, _Root] = {}
        self._recency: OrderedDict[int, _Block] = OrderedDict()
        self._pinned: dict[int, _Block] = {}
        self._next_number = 0
        self._journal = journal

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def __len__(self) -> int:
        return len(self._recency) + len(self._pinned)

    def match(self, tokens: Sequence[int], namespace: str, limit: int) -> PrefixMatch:
        """The longest saved prefix of at most `limit` tokens. Changes nothing."""
        path = self._path(tokens, namespace, limit)
        branch = path[-1] if path else self._roots.get(namespace)
        start = len(path) * BLOCK_TOKENS
        tail, tail_tokens = _closest(branch, tuple(tokens[start : min(start + BLOCK_TOKENS, limit)]))
        return PrefixMatch(tuple(n.number for n in path), tail.number if tail else None, tail_tokens)

    def use(self, tokens: Sequence[int], namespace: str) -> None:
        """Make the blocks of this prefix the most recent."""
        self._touch(self._held(tokens, namespace))

    def insert(self, tokens: Sequence[int], namespace: str, *, pin: bool = False) -> PrefixInsertion:
        """Take in the blocks of `tokens` that are not saved yet, as far as there is room.

        A last block that is not whole goes as soon as one comes that begins with it. With `pin`, all blocks
        of this prefix are never evicted.
        """
        path = self._held(tokens, namespace)
        self._touch(path)
        saved: list[tuple[int, int, int]] = []
        dropped: list[int] = []
        while len(path) * BLOCK_TOKENS < len(tokens) and self._make_room(path, dropped):
            start = len(path) * BLOCK_TOKENS
            block = self._add(path, tuple(tokens[start : start + BLOCK_TOKENS]), namespace)
            dropped += self._supersede(block)
            saved.append((block.number, start, start + len(block.tokens)))
        self._touch(path)
        if pin:
            self._pin(path)
        return PrefixInsertion(tuple(saved), tuple(dropped))

    def export(self) -> list[SavedBlock]:
        """All blocks, parents before children."""
        found: list[SavedBlock] = []
        for namespace, root in self._roots.items():
            stack: list[tuple[_Branch, int | None]] = [(root, None)]
            while stack:
                branch, parent = stack.pop()
                for block in branch.children.values():
                    found.append(SavedBlock(block.number, parent, namespace, block.tokens))
                    stack.append((block, block.number))
        return found

    def adopt(self, blocks: Sequence[SavedBlock]) -> tuple[int, ...]:
        """Take in blocks that `export` gave. Returns the numbers of those for which there is no place."""
        adopted: dict[int, _Block] = {}
        parents: set[int | None] = {None}
        refused: list[int] = []
        for block in blocks:
            if block.parent not in parents or not _is_block(block.tokens) or len(self) >= self.capacity:
                refused.append(block.number)
                continue
            parent = self._root(block.namespace) if block.parent is None else adopted[block.parent]
            adopted[block.number] = self._attach(block.number, block.tokens, parent)
            if len(block.tokens) == BLOCK_TOKENS:
                parents.add(block.number)
            self._next_number = max(self._next_number, block.number + 1)
        # `_touch` goes backwards: children first, then their parents, which must be more recent.
        self._touch(list(adopted.values()))
        return tuple(refused)

    def clear(self) -> tuple[int, ...]:
        """Forget all blocks that are not pinned. Returns their numbers."""
        dropped = tuple(self._recency)
        while self._recency:
            self._remove(next(iter(self._recency.values())))
        return dropped

    def check(self) -> None:
        """Assert that tree, recency and pins agree."""
        nodes = [node for root in self._roots.values() for node in _below(root)]
        assert {n.number for n in nodes} == set(self._recency) | set(self._pinned)
        assert len(self) == len(nodes) <= max(self.capacity, len(self._pinned))
        rank = {number: i for i, number in enumerate(self._recency)}
        assert all(root.children for root in self._roots.values()), "a namespace without blocks stays"
        for node in nodes:
            assert node.ordered == sorted(node.children)
            assert _is_block(node.tokens)
            assert len(node.tokens) == BLOCK_TOKENS or not node.children, "only whole blocks have children"
            parent = node.parent
            if isinstance(parent, _Block) and parent.number in rank and node.number in rank:
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
        """The blocks that hold `tokens` from the first on, the one that holds their last ones too."""
        path = self._path(tokens, namespace, len(tokens))
        rest = tuple(tokens[len(path) * BLOCK_TOKENS :])
        last, common = _closest(path[-1] if path else self._roots.get(namespace), rest)
        return [*path, last] if last and common == len(rest) else path

    def _supersede(self, block: _Block) -> list[int]:
        """Remove the blocks that the new `block` begins with, but no pinned ones. Returns their numbers."""
        beginnings = (block.tokens[:length] for length in range(1, len(block.tokens)))
        held = [block.parent.children[tokens] for tokens in beginnings if tokens in block.parent.children]
        removed = [shorter for shorter in held if shorter.number in self._recency]
        for shorter in removed:
            self._remove(shorter)
        return [shorter.number for shorter in removed]

    def _touch(self, path: Sequence[_Block]) -> None:
        for node in reversed(path):
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
        self._recency[number] = block
        if self._journal is not None and len(tokens) == BLOCK_TOKENS:
            self._journal.saved(name)
        return block

    def _make_room(self, keep: Sequence[_Block], evicted: list[int]) -> bool:
        """Whether there is room for one more block, after the least recent leaf is evicted if need be.

        Blocks of `keep` stay. The number of an evicted block is added to `evicted`.
        """
        if len(self) < self.capacity:
            return True
        oldest = next(iter(self._recency.values()), None)
        if oldest is None or oldest in keep or oldest.children:
            return False
        self._remove(oldest)
        evicted.append(oldest.number)
        self.num_evictions += 1
        return True

    def _remove(self, block: _Block) -> None:
        assert not block.children, "only leaves go"
        del self._recency[block.number]
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
