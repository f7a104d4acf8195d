"""Languages of numbers between bounds, digit by digit, without automata."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from openai_cpu_server.structured.languages.charset import DIGITS, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    Chars,
    Expr,
    Multiples,
    Residue,
    alt,
    both,
    literal,
    negate,
    optional,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.languages.lengths import bounded

_MOST_DIGITS = 20
"""Enough for 64 bits and for doubles. A model may write digits without end, and truncated JSON is invalid."""
DIGIT = Chars(DIGITS)
NONZERO = Chars(DIGITS - CharSet.chars("0"))


def integers_between(low: int | None, high: int | None) -> Expr:
    """Integers without leading zeros and `-0`. None means no bound."""
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
    shortest = len(str(low))
    if high is None:
        longer = seq(NONZERO, repeat(DIGIT, shortest, max(shortest, _MOST_DIGITS - 1)))
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


_MINUS = literal("-")
_POINT = literal(".")
_SOME_DIGITS = repeat(DIGIT, 0, _MOST_DIGITS)
_SOME_ZEROS = repeat(literal("0"), 0, _MOST_DIGITS)
WHOLE = alt(literal("0"), seq(NONZERO, repeat(DIGIT, 0, _MOST_DIGITS - 1)))
_FRACTION = seq(_POINT, repeat(DIGIT, 1, _MOST_DIGITS))
_ZEROS = seq(_POINT, repeat(literal("0"), 1, _MOST_DIGITS))
_E = seq(Chars(CharSet.chars("eE")), optional(Chars(CharSet.chars("+-"))))
_EXPONENT = seq(_E, repeat(DIGIT, 1, 3))
INTEGER = seq(optional(_MINUS), WHOLE)
PLAIN = seq(INTEGER, optional(_FRACTION))
"""Without an exponent, so that bounds can be checked."""
_ANY_WHOLE = seq(optional(_MINUS), alt(literal("0"), seq(NONZERO, star(DIGIT))))
UNCOUNTED = (_ANY_WHOLE, seq(_ANY_WHOLE, optional(seq(_POINT, repeat(DIGIT, 1, None)))))
"""With any number of digits, for automata that count already."""
NUMBER = seq(PLAIN, optional(_EXPONENT))
NOT_NEGATIVE = seq(WHOLE, optional(_FRACTION), optional(_EXPONENT))
SMALL = seq(
    NONZERO,
    optional(seq(_POINT, repeat(DIGIT, 1, 14))),
    Chars(CharSet.chars("eE")),
    _MINUS,
    alt(seq(optional(literal("0")), NONZERO), seq(NONZERO, DIGIT)),
)
"""Numbers between 0 and 1, both excluded, as programs write them: 1e-05."""
_UP_TO_289 = alt(
    repeat(DIGIT, 1, 2), seq(Chars(CharSet.chars("12")), Chars(CharSet.chars("012345678")), DIGIT)
)
_UP_TO_307 = alt(seq(literal("29"), DIGIT), seq(literal("30"), Chars(CharSet.chars("01234567"))))
FINITE = alt(
    seq(
        alt(literal("0"), seq(NONZERO, repeat(DIGIT, 0, 14))),
        optional(_FRACTION),
        optional(seq(_E, _UP_TO_289)),
    ),
    seq(NONZERO, optional(_FRACTION), _E, _UP_TO_307),
)
"""Numbers without a sign that are finite as doubles."""
_PRECISION = 15
"""Decimal digits that a double keeps. With more, 4.99...9 would be read as 5."""


class Bound(msgspec.Struct, frozen=True):
    value: Decimal
    is_open: bool


def at_least(bound: Bound) -> Expr:
    value, is_open = bound.value, bound.is_open
    if value < 0 or (value == 0 and not is_open):
        below = _up_to(value.copy_abs(), is_open) if value < 0 else NOTHING
        return alt(_all_positive(is_open), seq(_MINUS, below))
    return _from(value, is_open)


def at_most(bound: Bound) -> Expr:
    value, is_open = bound.value, bound.is_open
    if value < 0 or (value == 0 and is_open):
        return seq(_MINUS, _from(value.copy_abs(), is_open))
    return alt(_up_to(value, is_open), seq(_MINUS, _all_positive(is_open)))


def equal_to(value: Decimal) -> Expr:
    whole, fraction = _parts(value)
    tail = seq(_POINT, literal(fraction), _SOME_ZEROS) if fraction else optional(_ZEROS)
    sign = _MINUS if value < 0 else optional(_MINUS) if value == 0 else EMPTY
    return seq(sign, literal(whole), tail)


def multiple_of(step: Decimal) -> Expr:
    digits = -min(int(step.as_tuple().exponent), 0)
    modulus = int(step.scaleb(digits))
    return seq(optional(_MINUS), Residue(modulus, digits))


def multiples_between(step: int, low: int | None, high: int | None) -> Expr:
    found = both(integers_between(low, high), multiple_of(Decimal(step)))
    return Multiples(step, low, high, found)


def round_numbers(zeros: int) -> Expr:
    tens = seq(NONZERO, _SOME_DIGITS, literal("0" * zeros))
    return seq(optional(_MINUS), alt(literal("0"), tens), optional(_ZEROS))


def fractional() -> Expr:
    """Numbers that are not integers, even rounded to a double."""
    whole = alt(literal("0"), seq(NONZERO, repeat(DIGIT, 0, 8)))
    digits = seq(star(DIGIT), NONZERO, star(DIGIT))
    return seq(optional(_MINUS), whole, _POINT, bounded(digits, 1, _PRECISION - 9))


def _parts(value: Decimal) -> tuple[str, str]:
    whole, _, fraction = f"{value.copy_abs():f}".partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def _all_positive(is_open: bool) -> Expr:
    return seq(WHOLE, optional(_limited_fraction(1) if is_open else _FRACTION))


def _limited_fraction(digits_before: int) -> Expr:
    """Beside an open bound, more digits than a double has would round to the bound."""
    room = _PRECISION - digits_before
    return seq(_POINT, repeat(DIGIT, 1, room)) if room > 0 else _ZEROS


def _from(value: Decimal, is_open: bool) -> Expr:
    whole, fraction = _parts(value)
    tail = _limited_fraction(len(whole)) if is_open else _FRACTION
    above = seq(integers_between(int(whole) + 1, None), optional(tail))
    return alt(above, seq(literal(whole), _fraction_from(fraction, is_open, tail)))


def _fraction_from(fraction: str, is_open: bool, tail: Expr) -> Expr:
    if not fraction:
        return both(tail, negate(_ZEROS)) if is_open else optional(tail)
    over = alt(*(seq(literal(p), Chars(c), _SOME_DIGITS) for p, c in _greater(fraction)))
    equal = literal(fraction)
    more = seq(equal, star(DIGIT), NONZERO, star(DIGIT)) if is_open else seq(equal, _SOME_DIGITS)
    found = seq(_POINT, alt(over, more))
    return both(found, tail) if is_open else found


def _up_to(value: Decimal, is_open: bool) -> Expr:
    whole, fraction = _parts(value)
    tail = _limited_fraction(len(whole)) if is_open else _FRACTION
    below = integers_between(0, int(whole) - 1) if whole != "0" else NOTHING
    far = 10 ** (len(whole) - 2) - 1 if is_open and len(whole) > 2 else None
    far_below = NOTHING if far is None else seq(integers_between(0, far), optional(_FRACTION))
    return alt(
        far_below, seq(below, optional(tail)), seq(literal(whole), _fraction_up_to(fraction, is_open, tail))
    )


def _fraction_up_to(fraction: str, is_open: bool, tail: Expr) -> Expr:
    under = [seq(literal(p), Chars(c), _SOME_DIGITS) for p, c in _less(fraction)]
    prefixes = [literal(fraction[:n]) for n in range(1, len(fraction))]
    exact = [] if is_open else [seq(literal(fraction), _SOME_ZEROS)]
    found = seq(_POINT, alt(*under, *prefixes, *exact)) if fraction else _ZEROS
    if not is_open:
        return optional(found)
    return both(optional(found), optional(tail)) if fraction else NOTHING


def _greater(digits: str) -> list[tuple[str, CharSet]]:
    return [(digits[:i], CharSet.of((ord(d) + 1, ord("9")))) for i, d in enumerate(digits) if d != "9"]


def _less(digits: str) -> list[tuple[str, CharSet]]:
    return [(digits[:i], CharSet.of((ord("0"), ord(d) - 1))) for i, d in enumerate(digits) if d != "0"]
