from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from openai_cpu_server.contract.replica import BLOCK_TOKENS, PrefixNews, block_hash, root_hash

Tokens = tuple[int, ...]
_STRIDE = 64
"""Tokens compared at once; any number of this order will do."""


@dataclass(eq=False)
class Branch:
    """Root of a namespace, or end of a block, where further blocks begin."""

    name: int = field(kw_only=True)
    """Name of the tokens up to here, equal on all machines (`contract.replica`)."""
    children: dict[Tokens, Block] = field(default_factory=dict)
    ordered: list[Tokens] = field(default_factory=list)
    """Sorted keys of `children`: the longest common prefix with some tokens is next to their position."""
    num_parts: int = 0
    """Number of incomplete children."""

    def closest(self, tokens: Tokens) -> tuple[Block | None, int]:
        """Return the child with the longest common prefix with `tokens`, and its length; else (None, 0)."""
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
    """Block of tokens. Only complete blocks have children; the last block of a text may have fewer tokens."""

    number: int = field(kw_only=True)
    tokens: Tokens = field(kw_only=True)
    parent: Branch = field(kw_only=True)
    state: int | None = None
    """Number of the state that is saved at its end."""
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
        """Return the block and all blocks before it, the last first."""
        found, branch = [], self.parent
        found.append(self)
        while isinstance(branch, Block):
            found.append(branch)
            branch = branch.parent
        return found


class PrefixJournal:
    """Additions and removals of whole blocks, for routers."""

    def __init__(self) -> None:
        self._changes: dict[int, bool] = {}
        """True by name if the block is saved now. An added and removed block counts as removed."""

    def saved(self, name: int) -> None:
        self._changes[name] = True

    def dropped(self, name: int) -> None:
        self._changes[name] = False

    def take(self) -> PrefixNews | None:
        changes, self._changes = self._changes, {}
        if not changes:
            return None
        return PrefixNews(
            saved=tuple(name for name, is_saved in changes.items() if is_saved),
            dropped=tuple(name for name, is_saved in changes.items() if not is_saved),
        )


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
        """`parent`: None for the first block of a text."""
        branch = parent or self._root(namespace)
        name = block_hash(branch.name, tokens)
        block = Block(number=number, tokens=tokens, parent=branch, name=name)
        branch.children[tokens] = block
        branch.num_parts += not block.is_whole
        insort(branch.ordered, tokens)
        self._num_blocks += 1
        if self._journal is not None and block.is_whole:
            self._journal.saved(name)
        return block

    def remove(self, block: Block) -> None:
        assert not block.children, "only leaves go"
        self._num_blocks -= 1
        del block.parent.children[block.tokens]
        block.parent.num_parts -= not block.is_whole
        block.parent.ordered.remove(block.tokens)
        if self._journal is not None and block.is_whole:
            self._journal.dropped(block.name)
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

    def _root(self, namespace: str) -> _Root:
        if namespace not in self._roots:
            self._roots[namespace] = _Root(namespace=namespace, name=root_hash(namespace))
        return self._roots[namespace]


_NOWHERE = Branch(name=0)


def is_block(tokens: Tokens) -> bool:
    return 0 < len(tokens) <= BLOCK_TOKENS


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix. Many tokens are compared at once first, because that is fast
    in Python."""
    length, at = min(len(a), len(b)), 0
    while at < length and tuple(a[at : at + _STRIDE]) == tuple(b[at : at + _STRIDE]):
        at += _STRIDE
    while at < length and a[at] == b[at]:
        at += 1
    return min(at, length)
