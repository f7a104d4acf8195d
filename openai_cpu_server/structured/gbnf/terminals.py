"""Writes lexemes as Lark terminals. Parts that are shared or deep become terminals of their own.

The others are regular expressions in Rust's syntax.
"""

from __future__ import annotations

import functools

from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    Alt,
    Chars,
    Expr,
    Repeat,
    Seq,
    Text,
    parts_first,
)

_SHORT = 12
"""A part with at most so many nodes is written again wherever it stands."""
_HIGHEST = 6
"""The most levels of parentheses in one terminal; llguidance reads some thirty at most."""


def terminal_lines(terminals: list[tuple[str, Expr]]) -> list[str]:
    """A line for each (name, language), and one for each part that they share."""
    return _Terminals(terminals).lines()


class _Terminals:
    def __init__(self, terminals: list[tuple[str, Expr]]) -> None:
        self._terminals = terminals
        self._bottom_up = parts_first([expr for _, expr in terminals])
        self._parts: dict[Expr, str] = {}
        self._heights: dict[Expr, int] = {}
        """The levels of parentheses above named parts; 0 for an expression without any."""
        self._name_parts()

    def _name_parts(self) -> None:
        sizes: dict[Expr, int] = {}
        uses: dict[Expr, int] = {}
        for expr in self._bottom_up:
            size = 1
            for part in expr.parts:
                size += sizes[part]
                uses[part] = uses.get(part, 0) + 1
            sizes[expr] = min(size, _SHORT + 1)
        for expr in self._bottom_up:
            self._heights[expr] = self._height(expr)
            is_shared = sizes[expr] > _SHORT and uses.get(expr, 0) > 1
            if is_shared or self._heights[expr] >= _HIGHEST or self._levels(expr) % 60 == 59:
                self._parts[expr] = f"P{len(self._parts)}"

    def _levels(self, expr: Expr) -> int:
        """The depth of a pure regular expression, else 0; Rust reads at most 250."""
        return 0 if self._heights[expr] else expr.depth

    def _height(self, expr: Expr) -> int:
        highest = 0
        for part in expr.parts:
            height = 1 if part in self._parts else self._heights[part]
            if height > highest:
                highest = height
        return highest + 1 if highest else 0

    def lines(self) -> list[str]:
        named = [(name, expr) for expr, name in self._parts.items()]
        return [f"{name}: {self._body(expr)}" for name, expr in [*self._terminals, *named]]

    def _body(self, expr: Expr) -> str:
        if not self._heights[expr]:
            return f"/{pattern(expr)}/" if expr != EMPTY else '""'
        if isinstance(expr, Seq):
            return " ".join(map(self._operand, expr.items))
        if isinstance(expr, Alt):
            return " | ".join(map(self._operand, expr.items))
        assert isinstance(expr, Repeat), expr
        return f"({self._operand(expr.item)}){count(expr.low, expr.high)}"

    def _operand(self, expr: Expr) -> str:
        if expr in self._parts:
            return self._parts[expr]
        body = self._body(expr)
        return f"({body})" if self._heights[expr] else body


def pattern(expr: Expr) -> str:
    """A regular expression in Rust's syntax, to stand between slashes."""
    if isinstance(expr, Chars):
        return _class(expr.set)
    if isinstance(expr, Text):
        return "".join(map(_character, map(ord, expr.text)))
    if isinstance(expr, Seq):
        return "".join(_part(x) for x in expr.items)
    if isinstance(expr, Alt):
        return "|".join(pattern(x) for x in expr.items)
    assert isinstance(expr, Repeat), expr
    item = pattern(expr.item)
    inner = item if isinstance(expr.item, Chars) else f"(?:{item})"
    return inner + count(expr.low, expr.high)


def _part(expr: Expr) -> str:
    return f"(?:{pattern(expr)})" if isinstance(expr, Alt) else pattern(expr)


def count(low: int, high: int | None) -> str:
    if high is None:
        return "*" if low == 0 else "+" if low == 1 else f"{{{low},}}"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"


@functools.lru_cache(maxsize=2048)
def _class(chars: CharSet) -> str:
    if not chars:
        return r"[^\x{0}-\x{10ffff}]"
    if chars.size == 1:
        return _character(chars.ranges[0][0])
    is_negated = chars != ANY and chars.ranges[-1][1] == MAX
    ranges = (~chars if is_negated else chars).ranges
    return f"[{'^' if is_negated else ''}{''.join(_range(low, high) for low, high in ranges)}]"


def _range(low: int, high: int) -> str:
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


@functools.lru_cache(maxsize=2048)
def _character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
