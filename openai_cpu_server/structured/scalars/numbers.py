"""Languages of numbers between bounds, digit by digit, without automata."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    bounded,
    literal,
    negate,
    optional,
    repeat,
    seq,
    star,
)

_MOST_DIGITS = 20
"""Enough for 64 bits and for doubles. A model may write digits without end, and truncated JSON is invalid."""
MOST_BOUND_DIGITS = 40
"""Digits of a bound on each side of its point that are checked one by one."""
DIGIT = Chars(DIGITS)
NONZERO = Chars(DIGITS - CharSet.chars("0"))


def integers_between(low: int | None, high: int | None) -> Expr:
    """Exclude leading zeros and `-0`. None means no bound."""
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
    high = 10 ** max(shortest + 1, _MOST_DIGITS) - 1 if high is None else high
    longest = len(str(high))
    if shortest == longest:
        return _DECIMAL.numbers(low, high, longest)
    first = _DECIMAL.numbers(low, 10**shortest - 1, shortest)
    if high == 10**longest - 1:
        return alt(first, seq(NONZERO, repeat(DIGIT, shortest, longest - 1)))
    last = _DECIMAL.numbers(10 ** (longest - 1), high, longest)
    if longest - shortest == 1:
        return alt(first, last)
    return alt(first, seq(NONZERO, repeat(DIGIT, shortest, longest - 2)), last)


class Digits(msgspec.Struct, frozen=True):
    characters: tuple[CharSet, ...]

    def between(self, first: int, last: int) -> Expr:
        sets = self.characters[first : last + 1]
        return Chars(CharSet.of(*(each for chars in sets for each in chars.ranges)))

    def numbers(self, low: int, high: int, length: int) -> Expr:
        if length == 0:
            return EMPTY
        unit = len(self.characters) ** (length - 1)
        first, last, parts = low // unit, high // unit, []
        if first == last:
            return seq(self.between(first, last), self.numbers(low % unit, high % unit, length - 1))
        if low % unit:
            parts.append(seq(self.between(first, first), self.numbers(low % unit, unit - 1, length - 1)))
            first += 1
        tail = []
        if high % unit != unit - 1:
            tail.append(seq(self.between(last, last), self.numbers(0, high % unit, length - 1)))
            last -= 1
        if first <= last:
            every = self.between(0, len(self.characters) - 1)
            parts.append(seq(self.between(first, last), repeat(every, length - 1, length - 1)))
        return alt(*parts, *tail)


_DECIMAL = Digits(tuple(map(CharSet.chars, "0123456789")))
_MINUS = literal("-")
_POINT = literal(".")


class Bound(msgspec.Struct, frozen=True):
    value: Decimal
    is_open: bool


class Decimals(msgspec.Struct, frozen=True):
    whole_digits: int = _MOST_DIGITS
    fraction_digits: int = _MOST_DIGITS

    @property
    def whole(self) -> Expr:
        return alt(literal("0"), seq(NONZERO, repeat(DIGIT, 0, self.whole_digits - 1)))

    @property
    def fraction(self) -> Expr:
        return seq(_POINT, repeat(DIGIT, 1, self.fraction_digits))

    @property
    def integers(self) -> Expr:
        return seq(optional(_MINUS), self.whole)

    @property
    def all(self) -> Expr:
        return seq(optional(_MINUS), self._all_positive)

    def at_least(self, bound: Bound) -> Expr:
        value, is_open = bound.value, bound.is_open
        if value < 0 or (value == 0 and not is_open):
            below = self._up_to(value.copy_abs(), is_open) if value < 0 else NOTHING
            return alt(self._all_positive, seq(_MINUS, below))
        return self._from(value, is_open)

    def at_most(self, bound: Bound) -> Expr:
        value, is_open = bound.value, bound.is_open
        if value < 0 or (value == 0 and is_open):
            return seq(_MINUS, self._from(value.copy_abs(), is_open))
        return alt(self._up_to(value, is_open), seq(_MINUS, self._all_positive))

    @property
    def _all_positive(self) -> Expr:
        return seq(self.whole, optional(self.fraction))

    def _limited_fraction(self, bound: Decimal) -> Expr:
        """Digits that a double lacks would round to an open bound."""
        half_step = Decimal(math.ulp(float(bound))) / 2
        room = min(-half_step.adjusted() - 1, self.fraction_digits)
        return seq(_POINT, repeat(DIGIT, 1, room)) if room > 0 else _ZEROS

    def _from(self, value: Decimal, is_open: bool) -> Expr:
        whole, fraction = _parts(value)
        tail = self._limited_fraction(value) if is_open else self.fraction
        above = seq(integers_between(int(whole) + 1, 10**self.whole_digits - 1), optional(tail))
        return alt(above, seq(literal(whole), _fraction_from(fraction, is_open, tail)))

    def _up_to(self, value: Decimal, is_open: bool) -> Expr:
        whole, fraction = _parts(value)
        tail = self._limited_fraction(value) if is_open else self.fraction
        below = integers_between(0, int(whole) - 1) if whole != "0" else NOTHING
        far = 10 ** (len(whole) - 2) - 1 if is_open and len(whole) > 2 else None
        far_below = NOTHING if far is None else seq(integers_between(0, far), optional(self.fraction))
        nearest = seq(literal(whole), _fraction_up_to(fraction, is_open, tail))
        return alt(far_below, seq(below, optional(tail)), nearest)


_DECIMALS = Decimals()
_SOME_DIGITS = repeat(DIGIT, 0, _MOST_DIGITS)
_SOME_ZEROS = repeat(literal("0"), 0, _MOST_DIGITS)
_ZEROS = seq(_POINT, repeat(literal("0"), 1, _MOST_DIGITS))
_E = seq(Chars(CharSet.chars("eE")), optional(Chars(CharSet.chars("+-"))))
_EXPONENT = seq(_E, repeat(DIGIT, 1, 3))
INTEGER = _DECIMALS.integers
PLAIN = _DECIMALS.all
_ANY_WHOLE = seq(optional(_MINUS), alt(literal("0"), seq(NONZERO, star(DIGIT))))
UNCOUNTED = (_ANY_WHOLE, seq(_ANY_WHOLE, optional(seq(_POINT, repeat(DIGIT, 1, None)))))
"""Any number of digits, for automata that count already."""
NUMBER = seq(PLAIN, optional(_EXPONENT))
NOT_NEGATIVE = seq(_DECIMALS.whole, optional(_DECIMALS.fraction), optional(_EXPONENT))
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
        optional(_DECIMALS.fraction),
        optional(seq(_E, _UP_TO_289)),
    ),
    seq(NONZERO, optional(_DECIMALS.fraction), _E, _UP_TO_307),
)
"""Numbers without a sign."""
_PRECISION = 15
"""Decimal digits that a double keeps."""


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
    digits = seq(star(DIGIT), NONZERO, star(DIGIT))
    usual = seq(alt(literal("0"), seq(NONZERO, repeat(DIGIT, 0, 8))), _POINT, bounded(digits, 1, 6))
    large = [
        seq(NONZERO, repeat(DIGIT, n - 1, n - 1), _POINT, bounded(digits, 1, max(_PRECISION - n, 1)))
        for n in range(10, _PRECISION + 1)
    ]
    return seq(optional(_MINUS), alt(usual, *large))


def _parts(value: Decimal) -> tuple[str, str]:
    whole, _, fraction = f"{value.copy_abs():f}".partition(".")
    return whole.lstrip("0") or "0", fraction.rstrip("0")


def _fraction_from(fraction: str, is_open: bool, tail: Expr) -> Expr:
    if not fraction:
        return both(tail, negate(_ZEROS)) if is_open else optional(tail)
    over = alt(*_beside(fraction, lambda digit: CharSet.of((digit + 1, ord("9")))))
    equal = literal(fraction)
    more = seq(equal, star(DIGIT), NONZERO, star(DIGIT)) if is_open else seq(equal, _SOME_DIGITS)
    found = seq(_POINT, alt(over, more))
    return both(found, tail) if is_open else found


def _fraction_up_to(fraction: str, is_open: bool, tail: Expr) -> Expr:
    under = _beside(fraction, lambda digit: CharSet.of((ord("0"), digit - 1)))
    prefixes = [literal(fraction[:n]) for n in range(1, len(fraction))]
    exact = [] if is_open else [seq(literal(fraction), _SOME_ZEROS)]
    found = seq(_POINT, alt(*under, *prefixes, *exact)) if fraction else _ZEROS
    if not is_open:
        return optional(found)
    return both(optional(found), optional(tail)) if fraction else NOTHING


def _beside(digits: str, others: Callable[[int], CharSet]) -> list[Expr]:
    """Return the fractions with one other digit, behind equal ones."""
    found = [(digits[:i], others(ord(digit))) for i, digit in enumerate(digits)]
    return [seq(literal(same), Chars(chars), _SOME_DIGITS) for same, chars in found if chars]
