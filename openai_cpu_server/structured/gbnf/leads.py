"""The first bytes (in UTF-8) of what may come next, as sets of 256 bits. Readers decide byte by byte."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import Chars, Expr, Seq, Text

ALL_BYTES = (1 << 256) - 1
_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))


@functools.lru_cache(maxsize=4096)
def lead_bytes(chars: CharSet) -> int:
    return functools.reduce(int.__or__, (_of_range(low, high) for low, high in chars.ranges), 0)


def _of_range(low: int, high: int) -> int:
    mask = 0
    for first, last in _LENGTHS:
        start, stop = max(low, first), min(high, last)
        if start <= stop:
            mask |= _between(_lead(start), _lead(stop))
    return mask


def _between(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


def _lead(code: int) -> int:
    """The first byte of a character. A surrogate gets that of its neighbours, which adds no byte to a set."""
    return chr(code).encode("utf-8", "surrogatepass")[0]


@functools.lru_cache(maxsize=4096)
def lead_of_char(char: str) -> int:
    return 1 << _lead(ord(char))


class Leads:
    """Finds the first bytes of expressions that consist of characters only, and remembers them."""

    def __init__(self) -> None:
        self._fronts: dict[Expr, frozenset[CharSet]] = {}
        self._masks: dict[Expr, int] = {}

    def fronts(self, expr: Expr) -> frozenset[CharSet]:
        """The sets of characters that the expression may begin with."""
        if expr not in self._fronts:
            self._fronts[expr] = self._compute(expr)
        return self._fronts[expr]

    def mask(self, expr: Expr) -> int:
        """The bytes that the expression may begin with."""
        if expr not in self._masks:
            self._masks[expr] = functools.reduce(int.__or__, map(lead_bytes, self.fronts(expr)), 0)
        return self._masks[expr]

    def union(self, expressions: Iterable[Expr]) -> int:
        return functools.reduce(int.__or__, map(self.mask, expressions), 0)

    def _compute(self, expr: Expr) -> frozenset[CharSet]:
        if isinstance(expr, Chars):
            return frozenset((expr.set,))
        if isinstance(expr, Text):
            return frozenset((CharSet.chars(expr.text[0]),) if expr.text else ())
        found: frozenset[CharSet] = frozenset()
        for part in expr.parts:
            found |= self.fronts(part)
            if isinstance(expr, Seq) and not part.is_nullable:
                break
        return found
