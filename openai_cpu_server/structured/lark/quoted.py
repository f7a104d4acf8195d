"""Shortening of lexemes that begin with a string in double quotes. No such string is the beginning of
another. So if everything that begins with a quote begins with a whole string, strings never conflict, and
one character can stand for all of them."""

from __future__ import annotations

import functools
import re

from openai_cpu_server.structured.languages.charset import MAX, single
from openai_cpu_server.structured.languages.expr import (
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Repeat,
    Seq,
    Text,
    alt,
    character,
    literal,
    parts_first,
    repeat,
    seq,
)
from openai_cpu_server.structured.lark.places import FirstBytes
from openai_cpu_server.structured.lark.plan import Work

_WHOLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
STRING = Chars(single(MAX))
"""The grammar may have this character, too."""
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_START, _BODY, _ESCAPED, _END, _WRONG = range(5)
_Moves = tuple[int, int, int, int, int]
"""States (as bits) to which an expression may lead from each state."""
_STAY: _Moves = (1, 2, 4, 8, 16)
_ONTO_WRONG = 1 << _WRONG
_ANYWHERE: _Moves = (31, 31, 31, 31, 31)


class QuotedStrings:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._known: dict[Expr, _Moves] = {}
        self._leads = FirstBytes()

    def shortened(self, expr: Expr) -> Expr | None:
        """Return None if something else begins with a quote."""
        if not self._begins_so(expr):
            return expr
        if isinstance(expr, Text):
            found = _WHOLE.match(expr.text)
            return seq(STRING, literal(expr.text[found.end() :])) if found else None
        for part in parts_first([expr], self._known):
            self._moves(part)
        return self._shortened(expr)

    def _begins_so(self, expr: Expr) -> bool:
        return any(_QUOTE in chars for chars in self._leads.fronts(expr))

    def _shortened(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Alt):
            options = [found for x in expr.items if (found := self._shortened(x)) is not None]
            return alt(*options) if len(options) == len(expr.items) else None
        moves, items = _STAY, _spelt(expr)
        for i, item in enumerate(items):
            moves = _then(moves, self._moves(item))
            if moves[_START] == 1 << _END:
                return seq(STRING, *items[i + 1 :])
        return None if self._begins_so(expr) else expr

    def _moves(self, expr: Expr) -> _Moves:
        if expr not in self._known:
            self._known[expr] = self._compute(expr)
        return self._known[expr]

    def _compute(self, expr: Expr) -> _Moves:
        if isinstance(expr, Chars):
            return _of_chars(expr)
        if isinstance(expr, Alt):
            moves: _Moves = (0, 0, 0, 0, 0)
            for item in expr.items:
                moves = _union(moves, self._moves(item))
            return moves
        if isinstance(expr, Not):
            return _ANYWHERE
        if isinstance(expr, And):
            return functools.reduce(_common, map(self._moves, expr.items))
        if isinstance(expr, Repeat):
            once = self._moves(expr.item)
            return _closure(once) if expr.low == 0 else _then(once, _closure(once))
        moves = _STAY
        self._work.spend(len(expr.text) if isinstance(expr, Text) else 1)
        parts = map(_character, expr.text) if isinstance(expr, Text) else map(self._moves, expr.parts)
        for part in parts:
            moves = _then(moves, part)
        return moves


def _spelt(expr: Expr) -> tuple[Expr, ...]:
    """Literals become single characters, because a string may end within one."""
    items: list[Expr] = []
    for item in expr.items if isinstance(expr, Seq) else (expr,):
        if isinstance(item, Text):
            items += map(character, item.text)
        elif isinstance(item, Repeat) and item.low:
            items += [*_spelt(item.item), repeat(item.item, item.low - 1, item.high and item.high - 1)]
        else:
            items.append(item)
    return tuple(items)


@functools.lru_cache(maxsize=512)
def _character(char: str) -> _Moves:
    return _of_chars(Chars(single(ord(char))))


def _of_chars(expr: Chars) -> _Moves:
    has_quote, has_backslash = _QUOTE in expr.set, _BACKSLASH in expr.set
    has_others = expr.set.size > has_quote + has_backslash
    start = has_quote << _BODY | (has_backslash or has_others) << _WRONG
    body = has_quote << _END | has_backslash << _ESCAPED | has_others << _BODY
    return (start, body, 1 << _BODY, _ONTO_WRONG, _ONTO_WRONG) if expr.set else (0, 0, 0, 0, 0)


@functools.lru_cache(maxsize=4096)
def _then(first: _Moves, second: _Moves) -> _Moves:
    return _tuple([_through(mask, second) for mask in first])


def _through(mask: int, moves: _Moves) -> int:
    found = 0
    for state, reached in enumerate(moves):
        if mask >> state & 1:
            found |= reached
    return found


@functools.lru_cache(maxsize=4096)
def _union(first: _Moves, second: _Moves) -> _Moves:
    return _tuple([a | b for a, b in zip(first, second, strict=True)])


def _common(first: _Moves, second: _Moves) -> _Moves:
    return _tuple([a & b for a, b in zip(first, second, strict=True)])


def _closure(once: _Moves) -> _Moves:
    moves = _STAY
    while (grown := _union(moves, _then(moves, once))) != moves:
        moves = grown
    return moves


def _tuple(masks: list[int]) -> _Moves:
    a, b, c, d, e = masks
    return a, b, c, d, e
