r"""The language of a pattern with look-around and word boundaries: intersections and complements.

A tree is read from its end to its beginning: each part gets the language of all that may follow it, so that
`(?=x)` is an intersection with that. What stands before matters only by its last character: `\b`, `^` and
look-behind ask no more. So there is a language for each class of characters that these tell apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NoReturn

from openai_cpu_server.structured.errors import InvalidPattern
from openai_cpu_server.structured.languages.charset import WORD, CharSet, partition
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Chars,
    Expr,
    alt,
    both,
    negate,
    repeat,
    seq,
)
from openai_cpu_server.structured.scalars.regex_parser import (
    ASSERTIONS,
    Ahead,
    Anchor,
    Behind,
    Boundary,
    Char,
    Choice,
    Counted,
    Sequence,
    Tree,
)

_MOST_COPIES = 12
"""A repetition with look-around inside is written out if it has at most so many rounds."""
_MOST_STEPS = 2_000
_DEEPEST = 100
"""So many parts may wait for each other. Each takes some levels of Python's stack."""
_Follow = Callable[[int], Expr]
"""The language of what may follow, by the class of the character before."""
_START = -1
"""The class of no character: the text begins here."""


def asserts(tree: Tree) -> bool:
    """Whether the tree has look-around or word boundaries."""
    return any(isinstance(x, ASSERTIONS) for x in _parts(tree))


def plain(tree: Tree) -> Expr:
    """The language of a tree without anchors and assertions."""
    if isinstance(tree, Char):
        return Chars(tree.set) if tree.set else NOTHING
    if isinstance(tree, Sequence):
        return seq(*(plain(x) for x in tree.items))
    if isinstance(tree, Choice):
        return alt(*(plain(x) for x in tree.items))
    assert isinstance(tree, Counted)
    return repeat(plain(tree.item), tree.low, tree.high)


def _parts(tree: Tree) -> Iterator[Tree]:
    yield tree
    if isinstance(tree, (Sequence, Choice)):
        for item in tree.items:
            yield from _parts(item)
    elif isinstance(tree, Counted):
        yield from _parts(tree.item)
    elif isinstance(tree, Ahead):
        yield from _parts(tree.tree)


def _is_plain(tree: Tree) -> bool:
    return not any(isinstance(x, (Anchor, *ASSERTIONS)) for x in _parts(tree))


def _joined(items: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """The items with each run of plain ones as one, except a character at its end: that is simple to read."""
    found: list[Tree] = []
    for is_plain, run in itertools.groupby(items, _is_plain):
        each = tuple(run)
        last = each[-1:] if is_plain and isinstance(each[-1], Char) else ()
        body = each[: len(each) - len(last)]
        found += [Counted(Sequence(body), 1, 1)] if is_plain and body else body
        found += last
    return tuple(found)


class Asserting:
    """Reads one tree. Raises InvalidPattern where the pattern is not regular enough."""

    def __init__(self, pattern: str, tree: Tree) -> None:
        self._pattern = pattern
        self._tree = tree
        self._num_steps = 0
        self._depth = 0
        parts = list(_parts(tree))
        asked = [WORD] if any(isinstance(x, Boundary) for x in parts) else []
        self._classes = partition([*asked, *(x.set for x in parts if isinstance(x, Behind))])

    def searched(self) -> Expr:
        """The strings that contain a match."""
        return self._found_in(lambda before: ALL)

    def matched(self) -> Expr:
        """The strings that match as a whole."""
        return self._read(self._tree, _START, lambda before: EMPTY)

    def _found_in(self, follow: _Follow) -> Expr:
        at_start = self._read(self._tree, _START, follow)
        later: dict[Expr, list[CharSet]] = {}
        for i, chars in enumerate(self._classes):
            later.setdefault(self._read(self._tree, i, follow), []).append(chars)
        if list(later) == [at_start]:
            return seq(ALL, at_start)
        rest = [seq(ALL, alt(*map(Chars, chars)), language) for language, chars in later.items()]
        return alt(at_start, *rest)

    def _read(self, tree: Tree, before: int, follow: _Follow) -> Expr:
        """The language of `tree` and what follows, behind a character of the class `before`."""
        self._num_steps += 1
        self._depth += 1
        if self._num_steps > _MOST_STEPS or self._depth > _DEEPEST:
            self._fail("look-around or '\\b' in a pattern with too many parts: simplify the pattern")
        found = self._dispatched(tree, before, follow)
        self._depth -= 1
        return found

    def _dispatched(self, tree: Tree, before: int, follow: _Follow) -> Expr:
        if isinstance(tree, Anchor):
            return self._anchored(tree, before, follow)
        if isinstance(tree, ASSERTIONS):
            return both(follow(before), self._asserted(tree, before))
        if isinstance(tree, Char):
            return self._char(tree.set, follow)
        if isinstance(tree, Sequence):
            return self._sequence(_joined(tree.items), before, follow)
        if isinstance(tree, Choice):
            return alt(*(self._read(x, before, follow) for x in tree.items))
        return self._plainly(tree, before, follow) if _is_plain(tree) else self._rounds(tree, before, follow)

    def _anchored(self, tree: Anchor, before: int, follow: _Follow) -> Expr:
        if tree.is_start:
            return follow(before) if before == _START else NOTHING
        return EMPTY if follow(before).is_nullable else NOTHING

    def _asserted(self, tree: Boundary | Ahead | Behind, before: int) -> Expr:
        """The language of all that may stand here, whatever the pattern wants next."""
        if isinstance(tree, Ahead):
            found = self._read(tree.tree, before, lambda _: ALL)
            return found if tree.is_wanted else negate(found)
        if isinstance(tree, Behind):
            return ALL if self._is_in(tree.set, before) == tree.is_wanted else NOTHING
        word_follows = seq(Chars(WORD), ALL)
        wants_word = self._is_in(WORD, before) != tree.is_edge
        return word_follows if wants_word else negate(word_follows)

    def _is_in(self, chars: CharSet, before: int) -> bool:
        return before != _START and self._classes[before].ranges[0][0] in chars

    def _char(self, chars: CharSet, follow: _Follow) -> Expr:
        parts: dict[Expr, list[CharSet]] = {}
        for i, each in enumerate(self._classes):
            if common := chars & each:
                parts.setdefault(follow(i), []).append(common)
        return alt(*(seq(alt(*map(Chars, sets)), language) for language, sets in parts.items()))

    def _sequence(self, items: tuple[Tree, ...], before: int, follow: _Follow) -> Expr:
        if not items:
            return follow(before)
        known: dict[int, Expr] = {}

        def rest(last: int) -> Expr:
            if last not in known:
                known[last] = self._sequence(items[1:], last, follow)
            return known[last]

        return self._read(items[0], before, rest)

    def _plainly(self, tree: Counted, before: int, follow: _Follow) -> Expr:
        """A repetition of plain text. If it matters how it ends, it is split by its last character."""
        language = plain(tree)
        ends: dict[Expr, list[CharSet]] = {}
        for i, chars in enumerate(self._classes):
            ends.setdefault(follow(i), []).append(chars)
        if len(ends) == 1 and (not language.is_nullable or follow(before) in ends):
            return seq(language, next(iter(ends)))
        options = [follow(before)] if language.is_nullable else []
        for behind, sets in ends.items():
            options.append(seq(both(language, seq(ALL, alt(*map(Chars, sets)))), behind))
        return alt(*options)

    def _rounds(self, tree: Counted, before: int, follow: _Follow) -> Expr:
        if tree.high is not None and tree.high <= _MOST_COPIES:
            needed, spare = (tree.item,) * tree.low, tree.high - tree.low
            rest: Tree = Sequence(())
            for _ in range(spare):
                rest = Choice((Sequence((tree.item, rest)), Sequence(())))
            return self._sequence((*needed, rest), before, follow)
        unwanted = self._tempered(tree.item)
        if unwanted is None or follow(before) is not EMPTY or any(follow(i) is not EMPTY for i in self._all):
            self._fail("look-around inside an endless repetition: state it once, before the repetition")
        texts = repeat(Chars(unwanted[1]), tree.low, tree.high)
        return both(texts, negate(seq(ALL, unwanted[0], ALL)))

    @property
    def _all(self) -> range:
        return range(len(self._classes))

    def _tempered(self, item: Tree) -> tuple[Expr, CharSet] | None:
        """For `(?!x)c`, a round of `((?!x)c)*`: the language of x, and c; None if it is anything else."""
        if not isinstance(item, Sequence) or len(item.items) != 2:
            return None
        ahead, char = item.items
        if not isinstance(ahead, Ahead) or ahead.is_wanted or not isinstance(char, Char):
            return None
        unwanted = plain(ahead.tree) if _is_plain(ahead.tree) else NOTHING
        return None if unwanted is NOTHING or unwanted.is_nullable else (unwanted, char.set)

    def _fail(self, message: str) -> NoReturn:
        raise InvalidPattern(self._pattern, 0, message)
