r"""Writes expressions as GBNF text that llama.cpp and llguidance's translator read alike.

Their common ground: `\xHH` escapes in classes (a dash, a caret and brackets have no other), characters beyond
ASCII as themselves, counts in braces, and at most some thirty nested groups.
"""

from __future__ import annotations

import functools

from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import EMPTY, Alt, Chars, Expr, Ref, Repeat, Seq, Text
from openai_cpu_server.structured.options import Budget

_PLAIN_IN_CLASS = frozenset("_.,:;@#%=<>!?' $*+(){}|\"")
_DEEPEST = 10
_MOST_TIMES = 1_000_000_000
"""The most repetitions that readers of the text count; no text has so many."""


class Printer:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lifted: dict[Expr, str] = {}

    def text(self, rules: dict[str, Expr]) -> str:
        lines = [f"{name} ::= {self._top(expr)}" for name, expr in rules.items()]
        queue = list(self._lifted.items())
        for expr, name in queue:
            known = len(self._lifted)
            lines.append(f"{name} ::= {self._top(expr)}")
            queue += list(self._lifted.items())[known:]
        return "\n".join(lines) + "\n"

    def _top(self, expr: Expr) -> str:
        if isinstance(expr, Alt) and expr.items:
            return " | ".join(self._show(x, 0) for x in expr.items)
        return self._show(expr, 0)

    def _show(self, expr: Expr, depth: int) -> str:
        if isinstance(expr, Chars):
            return char_class(expr.set)
        if isinstance(expr, Text):
            return literal_text(expr.text)
        if isinstance(expr, Ref):
            return expr.name
        if isinstance(expr, Seq):
            return self._sequence(expr, depth)
        if isinstance(expr, Alt):
            return self._lift(expr) if depth >= _DEEPEST else self._alternatives(expr.items, depth)
        assert isinstance(expr, Repeat), expr
        return self._operand(expr.item, depth) + _count(expr.low, expr.high)

    def _sequence(self, expr: Seq, depth: int) -> str:
        parts, run = [], ""
        for item in expr.items:
            if isinstance(item, Chars) and item.set.size == 1:
                run += chr(item.set.ranges[0][0])
                continue
            parts += [literal_text(run)] if run else []
            run = ""
            parts.append(self._show(item, depth))
        parts += [literal_text(run)] if run else []
        return " ".join(parts) or '""'

    def _alternatives(self, items: tuple[Expr, ...], depth: int) -> str:
        """The alternatives, with a question mark for the empty one."""
        filled = [x for x in items if x != EMPTY]
        shown = " | ".join(self._show(x, depth + 1) for x in filled)
        return f"({shown})" + ("?" if len(filled) < len(items) else "")

    def _operand(self, expr: Expr, depth: int) -> str:
        """The operand in parentheses, or as a rule of its own if it would nest too deep or is counted itself.

        The translator forgets the parentheses of `(x{2})*`.
        """
        if isinstance(expr, (Chars, Text, Ref)):
            return self._show(expr, depth)
        if depth >= _DEEPEST or isinstance(expr, Repeat) or (isinstance(expr, Alt) and EMPTY in expr.items):
            return self._lift(expr)
        if isinstance(expr, Alt):
            return self._alternatives(expr.items, depth)
        return f"({self._show(expr, depth + 1)})"

    def _lift(self, expr: Expr) -> str:
        if expr not in self._lifted:
            self._budget.spend("rules")
            self._lifted[expr] = f"part-{len(self._lifted) + 1}"
        return self._lifted[expr]


def _count(low: int, high: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in short:
        return short[low, high]
    if high is not None and low <= _MOST_TIMES:
        high = min(high, _MOST_TIMES)
    if low == high:
        return f"{{{low}}}"
    return f"{{{low},{'' if high is None else high}}}"


def literal_text(text: str) -> str:
    if text.isalnum() and text.isascii():
        return f'"{text}"'
    return '"' + "".join(_in_literal(c) for c in text) + '"'


def _in_literal(char: str) -> str:
    named = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    if char in named:
        return named[char]
    return char if ord(char) >= 0x20 and ord(char) != 0x7F else f"\\x{ord(char):02x}"


@functools.lru_cache(maxsize=1024)
def char_class(chars: CharSet) -> str:
    """A class, negated if the set reaches the last code point: that is shorter."""
    if chars.ranges and chars.ranges[-1][1] == MAX and chars != ANY:
        return f"[^{_ranges(~chars)}]"
    return f"[{_ranges(chars)}]" if chars else f"[^{_ranges(ANY)}]"


def _ranges(chars: CharSet) -> str:
    return "".join(_range(low, high) for low, high in _joined_over_surrogates(chars))


def _joined_over_surrogates(chars: CharSet) -> list[tuple[int, int]]:
    """The ranges, joined across the surrogates, which are no characters."""
    ranges: list[tuple[int, int]] = []
    for low, high in chars.ranges:
        if low == 0xE000 and ranges and ranges[-1][1] == 0xD7FF:
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    return ranges


def _range(low: int, high: int) -> str:
    if low == high:
        return _in_class(low)
    return _in_class(low) + ("-" if high > low + 1 else "") + _in_class(high)


def _in_class(code: int) -> str:
    char = chr(code)
    if code >= 0x80 or (char.isascii() and char.isalnum()) or char in _PLAIN_IN_CLASS:
        return char
    return f"\\x{code:02x}"
