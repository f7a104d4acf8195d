"""The language of a pattern: the strings in which it is found, as JSON Schema means it."""

from __future__ import annotations

import functools

import msgspec

from openai_cpu_server.structured.errors import InvalidPattern
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Expr,
    alt,
    seq,
)
from openai_cpu_server.structured.options import Limits
from openai_cpu_server.structured.scalars.regex_assertions import Asserting, asserts, plain
from openai_cpu_server.structured.scalars.regex_parser import (
    Anchor,
    Choice,
    Counted,
    RegexParser,
    Sequence,
    Tree,
)

_MOST_WAYS = 64


class _Way(msgspec.Struct, frozen=True):
    """One alternative of a pattern, and whether it begins at the string's start and ends at its end."""

    body: Expr
    at_start: bool = False
    at_end: bool = False


@functools.lru_cache(maxsize=32)
def search_language(pattern: str, limits: Limits) -> Expr:
    """The strings that contain a match. Raises InvalidPattern."""
    tree = _parsed(pattern, limits)
    if asserts(tree):
        return Asserting(pattern, tree).searched()
    ways = _Splitter(pattern).ways(tree)
    return alt(*(seq(EMPTY if w.at_start else ALL, w.body, EMPTY if w.at_end else ALL) for w in ways))


def full_language(pattern: str, limits: Limits) -> Expr:
    """The strings that match as a whole. Raises InvalidPattern."""
    tree = _parsed(pattern, limits)
    if asserts(tree):
        return Asserting(pattern, tree).matched()
    return alt(*(w.body for w in _Splitter(pattern).ways(tree)))


def _parsed(pattern: str, limits: Limits) -> Tree:
    if len(pattern) > limits.text:
        raise InvalidPattern(pattern, 0, "the pattern is too long")
    return RegexParser(pattern, limits).parse()


class _Splitter:
    """Moves the anchors of a tree to the ends of its alternatives."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def ways(self, tree: Tree) -> list[_Way]:
        if not _has_anchor(tree):
            return [_Way(plain(tree))]
        if isinstance(tree, Anchor):
            return [_Way(EMPTY, at_start=tree.is_start, at_end=not tree.is_start)]
        if isinstance(tree, Choice):
            return [way for item in tree.items for way in self.ways(item)]
        if isinstance(tree, Counted):
            return self._counted(tree)
        assert isinstance(tree, Sequence)
        ways = [_Way(EMPTY)]
        for item in tree.items:
            ways = [self._joined(left, right) for left in ways for right in self.ways(item)]
            if len(ways) > _MOST_WAYS:
                raise InvalidPattern(self._pattern, 0, "too many anchored alternatives")
        return [w for w in ways if w.body != NOTHING]

    def _counted(self, tree: Counted) -> list[_Way]:
        if tree.high != 1:
            raise InvalidPattern(self._pattern, 0, "anchors inside a repetition are not supported")
        return ([_Way(EMPTY)] if tree.low == 0 else []) + self.ways(tree.item)

    def _joined(self, left: _Way, right: _Way) -> _Way:
        """`a$b` and `a^b` match nothing, unless the part on the wrong side of the anchor can be empty."""
        before, after = left.body, right.body
        if right.at_start:
            before = self._emptied(before)
        if left.at_end:
            after = self._emptied(after)
        return _Way(seq(before, after), left.at_start or right.at_start, left.at_end or right.at_end)

    def _emptied(self, body: Expr) -> Expr:
        return EMPTY if body.is_nullable else NOTHING


def _has_anchor(tree: Tree) -> bool:
    if isinstance(tree, (Sequence, Choice)):
        return any(_has_anchor(x) for x in tree.items)
    if isinstance(tree, Counted):
        return _has_anchor(tree.item)
    return isinstance(tree, Anchor)
