"""Facts about strings -> their language and its grammar."""

from __future__ import annotations

import functools
from itertools import combinations, takewhile

from openai_cpu_server.structured.languages.automaton import Automaton, Deriver, build, few_strings, is_empty
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.elimination import to_expr
from openai_cpu_server.structured.languages.expr import (
    ALL,
    ANY_CHAR,
    NOTHING,
    And,
    Chars,
    Expr,
    Repeat,
    Seq,
    alt,
    any_of,
    both,
    literal,
    negate,
)
from openai_cpu_server.structured.languages.lengths import bounded, not_shorter, span, weight, within
from openai_cpu_server.structured.logic.goals import Branch, Goal, Goals
from openai_cpu_server.structured.options import Budget, Limits
from openai_cpu_server.structured.scalars.formats import FORMATS, LIMITED
from openai_cpu_server.structured.scalars.regex import full_language, search_language
from openai_cpu_server.structured.schema.nodes import Format, Kind, Length, Pattern, Scalars

_COUNTED = 24
"""A limit on a pattern's length is exact up to so many characters."""
_SHORT = 12
"""Strings of a pattern are listed if none is longer."""
_MOST_STATES = 250
"""The most states of an automaton that counts characters."""


class Strings:
    """Finds the languages of string branches. Patterns are compiled once."""

    def __init__(self, goals: Goals, budget: Budget) -> None:
        self._goals = goals
        self._budget = budget
        self._patterns: dict[str, Expr] = {}
        self._automata: dict[Expr, Automaton] = {}
        self._simple: dict[Expr, Expr | None] = {}
        self._empty: dict[Expr, bool] = {}
        self._deriver = Deriver(budget)

    def pattern(self, pattern: str) -> Expr:
        if pattern not in self._patterns:
            self._patterns[pattern] = search_language(pattern, self._budget.limits)
        return self._patterns[pattern]

    def language(self, branch: Branch) -> Expr:
        """The strings that fit all facts; listed ones are filtered here."""
        if any(isinstance(f.node, Scalars) and f.is_true for f in branch):
            return alt(*self.listed(branch))
        low, high = _lengths(branch)
        return bounded(both(*self._parts(branch)), low, high)

    def listed(self, branch: Branch) -> list[Expr]:
        """The values of an `enum` that fit the other facts."""
        lists = [f.node.strings for f in branch if isinstance(f.node, Scalars) and f.is_true]
        common = [x for x in lists[0] if all(x in other for other in map(set, lists[1:]))]
        low, high = _lengths(branch)
        parts = self._parts(branch)
        return [literal(x) for x in common if self._fits(x, parts, low, high)]

    def _parts(self, branch: Branch) -> list[Expr]:
        """The languages of the facts, except lengths and lists."""
        skipped = [
            f for f in branch if isinstance(f.node, Length) or (isinstance(f.node, Scalars) and f.is_true)
        ]
        return [self._part(f.node, f.is_true) for f in branch if f not in skipped]

    def _part(self, node: object, is_true: bool) -> Expr:
        if isinstance(node, Pattern):
            found = self.pattern(node.pattern)
        elif isinstance(node, Format):
            found = _format_language(node.name)
        else:
            assert isinstance(node, Scalars), node
            found = any_of(node.strings)
        return found if is_true else negate(found)

    def _fits(self, text: str, parts: list[Expr], low: int, high: int | None) -> bool:
        if len(text) < low or (high is not None and len(text) > high):
            return False
        return all(self.matches(part, text) for part in parts)

    def matches(self, language: Expr, text: str) -> bool:
        return self._deriver.matches(language, text)

    def of_goal(self, goal: Goal) -> Expr:
        """All strings that fit a goal."""
        languages = [self.language(b) for b in self._goals.branches(goal, Kind.STRING)]
        return ALL if ALL in languages else alt(*languages)

    def is_empty(self, language: Expr) -> bool:
        if not language.is_extended:
            return language is NOTHING
        if language not in self._empty:
            clash = isinstance(language, And) and _starts_clash(language)
            is_found = not clash and _without_counting(language) not in (None, NOTHING)
            self._empty[language] = clash or (not is_found and is_empty(language, self._budget))
        return self._empty[language]

    def automaton(self, language: Expr) -> Automaton:
        if language not in self._automata:
            self._automata[language] = build(language, self._budget)
        return self._automata[language]

    def few(self, language: Expr, most: int) -> list[str] | None:
        """All strings of the language, if they are short and at most so many; else None."""
        longest = span(language)[1]
        if longest is None or longest > _SHORT:
            return None
        return few_strings(self.automaton(language), most)

    def simplified(self, language: Expr) -> Expr | None:
        """The expression without intersections and complements; None if that would be too long."""
        if not language.is_extended:
            return language
        if language not in self._simple:
            found = _without_counting(language)
            self._simple[language] = to_expr(self.automaton(language)) if found is None else found
        return self._simple[language]


@functools.lru_cache(maxsize=len(FORMATS))
def _format_language(name: str) -> Expr:
    """A format's language. It is the same for every schema, so it is compiled once."""
    return full_language(FORMATS[name], Limits())


@functools.lru_cache(maxsize=1)
def _limited_formats() -> dict[Expr, Expr]:
    """The languages that replace formats where lengths are limited."""
    return {_format_language(name): full_language(LIMITED[name], Limits()) for name in LIMITED}


def _starts_clash(language: And) -> bool:
    """Whether two parts begin with different characters, which needs no automaton."""
    starts = [_start(x) for x in language.items]
    return any(not a & b for one, other in combinations(starts, 2) for a, b in zip(one, other, strict=False))


def _start(expr: Expr) -> list[CharSet]:
    """The characters with which every string begins, as far as that is plain."""
    parts = expr.items if isinstance(expr, Seq) else (expr,)
    return [x.set for x in takewhile(lambda x: isinstance(x, Chars), parts) if isinstance(x, Chars)]


def _without_counting(language: Expr) -> Expr | None:
    """Most strings of a plain language within these lengths, where an automaton would have to count far."""
    if not isinstance(language, And) or len(language.items) != 2:
        return None
    body, length = language.items
    if not isinstance(length, Repeat) or length.item is not ANY_CHAR or body.is_extended:
        return None
    is_limited = length.high is not None and length.high > _COUNTED and length.low <= span(body)[0]
    counted = length.low if length.high is None else length.high
    if not is_limited and weight(body) * counted <= _MOST_STATES:
        return None
    least, most = span(body)
    if most is None or length.low > least:
        body = _limited_formats().get(body, body)
    found = not_shorter(body, length.low)
    return found if length.high is None else within(found, length.high)


def _lengths(branch: Branch) -> tuple[int, int | None]:
    lengths = [f.node for f in branch if isinstance(f.node, Length)]
    high: int | None = None
    for each in lengths:
        high = _least(high, each.high)
    return max((each.low for each in lengths), default=0), high


def _least(one: int | None, other: int | None) -> int | None:
    """The smaller limit; None: no limit."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
