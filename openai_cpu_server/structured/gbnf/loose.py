"""Simplifies lexemes for the search for conflicts:
forgets counts, spells out characters, sets words apart."""

from __future__ import annotations

from collections.abc import Iterator

from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    Alt,
    Chars,
    Expr,
    Repeat,
    Seq,
    Text,
    alt,
    every_expression,
    literal,
    repeat,
    seq,
    star,
)

_LARGEST_COUNT = 3
_DEEPEST = 40


class Loosener:
    def __init__(self) -> None:
        self._known: dict[Expr, Expr] = {}

    def loosened(self, expr: Expr) -> Expr:
        """A language that contains all words of the expression, perhaps more, and has a small automaton."""
        if expr not in self._known:
            found = self._compute(expr)
            self._known[expr] = found if found.depth <= _DEEPEST else star(Chars(_alphabet(found)))
        return self._known[expr]

    def _compute(self, expr: Expr) -> Expr:
        if isinstance(expr, Text):
            return literal(expr.text)
        if isinstance(expr, Seq):
            return seq(*map(self.loosened, expr.items))
        if isinstance(expr, Alt):
            return alt(*map(self.loosened, expr.items))
        if isinstance(expr, Repeat):
            high = expr.high if expr.high is not None and expr.high <= _LARGEST_COUNT else None
            return repeat(self.loosened(expr.item), min(expr.low, _LARGEST_COUNT), high)
        return expr


def _alphabet(expr: Expr) -> CharSet:
    sets = [x.set for x in every_expression([expr]) if isinstance(x, Chars)]
    return CharSet.of(*(r for each in sets for r in each.ranges))


def words(expr: Expr) -> Iterator[str]:
    """The alternatives that are nothing but a literal."""
    for item in expr.items if isinstance(expr, Alt) else (expr,):
        word = _word(item)
        if word is not None:
            yield word


def without_words(expr: Expr) -> Expr:
    """The expression without those alternatives."""
    return alt(*(x for x in (expr.items if isinstance(expr, Alt) else (expr,)) if _word(x) is None))


def _word(expr: Expr) -> str | None:
    if isinstance(expr, Text):
        return expr.text
    if isinstance(expr, Chars) and expr.set.size == 1:
        return chr(expr.set.ranges[0][0])
    if isinstance(expr, Seq) and expr.items:
        parts = [_word(x) for x in expr.items]
        return None if None in parts else "".join(x for x in parts if x)
    return None
