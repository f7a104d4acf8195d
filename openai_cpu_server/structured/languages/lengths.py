"""Lengths of the strings of an expression, limits on them, and simpler equivalents without complements."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from itertools import combinations, takewhile
from typing import TypeVar

from openai_cpu_server.structured.languages.automaton import (
    build_automaton,
    few_strings,
    has_length,
    is_empty,
    to_expr,
)
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    ANY_CHAR,
    NOTHING,
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Repeat,
    Residue,
    Seq,
    alt,
    both,
    every_expression,
    negate,
    rebuilt,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import Budget, SchemaTooLarge

V = TypeVar("V")

Span = tuple[int, "int | None"]


def span(expr: Expr) -> Span:
    """Least and greatest number of characters, or None for no limit."""
    if isinstance(expr, Chars):
        return 1, 1
    if isinstance(expr, (Seq, Alt)):
        spans = [span(x) for x in expr.items]
        lows, highs = [low for low, _ in spans], [high for _, high in spans if high is not None]
        is_limited = len(highs) == len(spans)
        if isinstance(expr, Seq):
            return sum(lows), sum(highs) if is_limited else None
        return min(lows, default=0), max(highs, default=0) if is_limited else None
    if isinstance(expr, Repeat):
        low, high = span(expr.item)
        return low * expr.low, None if expr.high is None or high is None else high * expr.high
    assert isinstance(expr, (And, Not, Residue)), expr
    return 0, None


def bounded(expr: Expr, low: int, high: int | None) -> Expr:
    """Return the strings of these lengths, by structure where that is simple, else as an intersection."""
    least, most = span(expr)
    if (high is not None and (least > high or high < low)) or (most is not None and most < low):
        return NOTHING
    if least >= low and (high is None or (most is not None and most <= high)):
        return expr
    found = _by_structure(expr, low, high)
    return both(expr, repeat(ANY_CHAR, low, high)) if found is None else found


def _by_structure(expr: Expr, low: int, high: int | None) -> Expr | None:
    if isinstance(expr, Repeat):
        return _repetition(expr, low, high)
    if isinstance(expr, Alt):
        parts = [bounded(x, low, high) for x in expr.items]
        return None if any(isinstance(x, And) for x in parts) else alt(*parts)
    return _sequence(expr, low, high) if isinstance(expr, Seq) else None


def _repetition(expr: Repeat, low: int, high: int | None) -> Expr | None:
    least, most = span(expr.item)
    if least != most or least == 0:
        return None
    fewest = max(expr.low, -(-low // least))
    highs = [h for h in (expr.high, None if high is None else high // least) if h is not None]
    most_items = min(highs, default=None)
    return (
        NOTHING if most_items is not None and most_items < fewest else repeat(expr.item, fewest, most_items)
    )


def _sequence(expr: Seq, low: int, high: int | None) -> Expr | None:
    spans = [span(x) for x in expr.items]
    variable = [i for i, s in enumerate(spans) if s[0] != s[1]]
    if len(variable) != 1:
        return None
    i = variable[0]
    fixed = sum(s[0] for j, s in enumerate(spans) if j != i)
    part = bounded(expr.items[i], max(low - fixed, 0), None if high is None else high - fixed)
    if isinstance(part, And):
        return None
    return seq(*expr.items[:i], part, *expr.items[i + 1 :])


def weight(expr: Expr) -> int:
    if isinstance(expr, And):
        return math.prod(map(weight, expr.items))
    if isinstance(expr, (Seq, Alt, Not)):
        return sum(map(weight, expr.parts))
    if isinstance(expr, Repeat):
        return weight(expr.item) * max(expr.low, expr.high or 1, 1)
    return expr.modulus if isinstance(expr, Residue) else 1


_COUNTED = 24
"""Most states of a part that is combined with the rest of an intersection."""
_SHORT = 12
"""Longest strings of a pattern that are listed."""
_MOST_STATES = 250
"""States of an intersection up to which it becomes one expression."""


class PlainLanguages:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.automaton = functools.cache(functools.partial(build_automaton, budget=budget))
        self._simple: dict[Expr, Expr | None] = {}
        self._surely_empty = functools.cache(functools.partial(self._tried, self._has_none))

    def is_empty(self, language: Expr) -> bool:
        """Return True only if surely empty: too many states count as not empty."""
        if not language.is_extended:
            return language is NOTHING
        return self._surely_empty(language) or False

    def _has_none(self, language: Expr) -> bool:
        if isinstance(language, And) and _starts_clash(language):
            return True
        lengths = (x for x in language.parts if isinstance(x, Repeat) and x.item is ANY_CHAR)
        length = next(lengths, None)
        if isinstance(language, And) and length is not None:
            body = both(*(x for x in language.items if x is not length))
            return not has_length(self.automaton(body), length.low, length.high, self._budget)
        return is_empty(language, self._budget)

    def _tried(self, find: Callable[[Expr], V], language: Expr) -> V | None:
        try:
            return find(language)
        except SchemaTooLarge as error:
            if error.limit != "regex_states":
                raise
            return None

    def few(self, language: Expr, most: int) -> list[str] | None:
        """Return all strings if they are few and short, else None."""
        longest = span(language)[1]
        if longest is None or longest > _SHORT:
            return None
        return few_strings(self.automaton(language), most)

    def simplified(self, language: Expr) -> Expr | None:
        """Return plain expressions and intersections of them, or None if too long."""
        if not language.is_extended:
            return language
        if language not in self._simple:  # not `functools.cache`, which takes more of the stack
            self._simple[language] = self._plain(language)
        return self._simple[language]

    def _plain(self, language: Expr) -> Expr | None:
        """Counts and large parts stay apart, because the reader combines them only as far as the text
        goes."""
        if weight(language) <= _MOST_STATES and (found := self._by_automaton(language)) is not None:
            return found
        if isinstance(language, And) and any(map(_has_one_spelling, language.items)):
            parts = [self._part(x) for x in language.items]
        elif isinstance(language, And):
            counted = [x for x in language.items if not x.is_extended and weight(x) > _COUNTED]
            others = both(*(x for x in language.items if x not in counted))
            parts = [self.simplified(x) for x in ([others, *counted] if counted else language.items)]
        elif isinstance(language, (Alt, Seq)):
            parts = [self.simplified(x) for x in language.items]
        else:
            return self._by_automaton(language)
        found = None if None in parts else rebuilt(language, (x for x in parts if x is not None))
        return self._by_automaton(language) if found is None else found

    def _part(self, language: Expr) -> Expr | None:
        """Leave complements to the reader, which has no state that the text does not reach."""
        if not isinstance(language, Not):
            return self.simplified(language)
        found = self.simplified(language.item)
        return None if found is None else negate(found)

    def _by_automaton(self, language: Expr) -> Expr | None:
        automaton = self._tried(self.automaton, language)
        return None if automaton is None else to_expr(automaton)


_PLAIN_ASCII = CharSet.of((0x20, 0x7E)) - CharSet.chars('"\\')


def _has_one_spelling(language: Expr) -> bool:
    """Return True if a string of JSON never escapes its characters, so that a complement beside it is one of
    spellings too."""
    if isinstance(language, And) or language.is_extended:
        return False
    sets = (x.set for x in every_expression([language]) if isinstance(x, Chars))
    return not any(chars - _PLAIN_ASCII for chars in sets)


def _starts_clash(language: And) -> bool:
    starts: list[list[CharSet]] = []
    for item in language.items:
        parts = item.items if isinstance(item, Seq) else (item,)
        chars = takewhile(lambda x: isinstance(x, Chars), parts)
        starts.append([x.set for x in chars if isinstance(x, Chars)])
    return any(not a & b for one, other in combinations(starts, 2) for a, b in zip(one, other, strict=False))
