"""The integers between two bounds, digit by digit. No automaton is needed."""

from __future__ import annotations

from openai_cpu_server.structured.languages.charset import DIGITS, CharSet
from openai_cpu_server.structured.languages.expr import EMPTY, NOTHING, Chars, Expr, alt, literal, repeat, seq

DIGIT = Chars(DIGITS)
NONZERO = Chars(DIGITS - CharSet.chars("0"))


def integers_between(low: int | None, high: int | None) -> Expr:
    """Integers without leading zeros and without `-0`; None: no bound."""
    if low is not None and high is not None and low > high:
        return NOTHING
    parts = []
    if low is None or low < 0:
        nearest = 1 if high is None or high > -1 else -high
        parts.append(seq(literal("-"), _naturals(nearest, None if low is None else -low)))
    if high is None or high >= 0:
        parts.append(_naturals(max(low or 0, 0), high))
    return alt(*parts)


def _naturals(low: int, high: int | None) -> Expr:
    """Natural numbers; 0 <= low <= high."""
    shortest = len(str(low))
    if high is None:
        longer = seq(NONZERO, repeat(DIGIT, shortest, None))
        return alt(_same_length(str(low), "9" * shortest), longer)
    longest = len(str(high))
    if shortest == longest:
        return _same_length(str(low), str(high))
    first = _same_length(str(low), "9" * shortest)
    last = _same_length("1" + "0" * (longest - 1), str(high))
    if longest - shortest == 1:
        return alt(first, last)
    return alt(first, seq(NONZERO, repeat(DIGIT, shortest, longest - 2)), last)


def _same_length(low: str, high: str) -> Expr:
    """Numbers of one length: those that begin like `low`, those in
    between, and those that begin like `high`."""
    if not low:
        return EMPTY
    if low[0] == high[0]:
        return seq(literal(low[0]), _same_length(low[1:], high[1:]))
    rest = len(low) - 1
    first, last, parts = int(low[0]), int(high[0]), []
    if low[1:] != "0" * rest:
        parts.append(seq(literal(low[0]), _same_length(low[1:], "9" * rest)))
        first += 1
    tail = []
    if high[1:] != "9" * rest:
        tail.append(seq(literal(high[0]), _same_length("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        digits = Chars(CharSet.of((ord("0") + first, ord("0") + last)))
        parts.append(seq(digits, repeat(DIGIT, rest, rest)))
    return alt(*parts, *tail)
