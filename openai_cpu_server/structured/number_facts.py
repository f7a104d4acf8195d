"""Facts about numbers -> the language of their text."""

from __future__ import annotations

import math
import sys
from decimal import Decimal

from openai_cpu_server.structured.expr import NOTHING, Expr, alt, both, literal, negate
from openai_cpu_server.structured.goals import Branch, Fact
from openai_cpu_server.structured.integers import integers_between
from openai_cpu_server.structured.nodes import Integer, Maximum, Minimum, MultipleOf, Scalars, Table
from openai_cpu_server.structured.numbers import (
    INTEGER,
    NOT_NEGATIVE,
    NUMBER,
    PLAIN,
    at_least,
    at_most,
    equal_to,
    fractional,
    multiple_of,
)
from openai_cpu_server.structured.report import Report

_LARGEST_MODULUS = 1_000
_LARGEST_DOUBLE = Decimal(repr(sys.float_info.max))


class Numbers:
    def __init__(self, table: Table, report: Report) -> None:
        self._table = table
        self._report = report

    def language(self, branch: Branch) -> Expr:
        """Texts of the numbers that fit all facts. Bounds are checked on numbers without an exponent."""
        branch = tuple(f for f in branch if not _is_beyond_doubles(f))
        if any(isinstance(f.node, Scalars) and f.is_true for f in branch):
            return alt(*self.listed(branch))
        if not branch:
            return NUMBER
        if _is_only_not_negative(branch):
            return NOT_NEGATIVE
        if _is_integer_range(branch):
            return integers_between(*_integer_bounds(branch))
        if len(branch) == 1 and isinstance(branch[0].node, (Minimum, Maximum)):
            return self._part(branch[0])
        return both(_base(branch), *(self._part(f) for f in branch))

    def listed(self, branch: Branch) -> list[Expr]:
        """The values of an `enum` that fit the other facts."""
        first = next(f.node for f in branch if isinstance(f.node, Scalars) and f.is_true)
        return [_spelled(x) for x in first.numbers if all(_holds(f, x) for f in branch)]

    def _part(self, fact: Fact) -> Expr:
        node = fact.node
        if isinstance(node, Minimum):
            return at_least(node.bound)
        if isinstance(node, Maximum):
            return at_most(node.bound)
        if isinstance(node, MultipleOf):
            found = self._multiples(fact, node.step)
        elif isinstance(node, Scalars):
            found = alt(*(equal_to(x) for x in node.numbers))
        else:
            return PLAIN
        return found if fact.is_true else negate(found)

    def _multiples(self, fact: Fact, step: Decimal) -> Expr:
        digits = -min(int(step.as_tuple().exponent), 0)
        if digits <= 20 and step.scaleb(digits) <= _LARGEST_MODULUS:
            return multiple_of(step)
        path, keyword = self._table.place(fact.number)
        self._report.refuse(path, keyword, f"by {step} needs too large an automaton")
        return PLAIN if fact.is_true else NOTHING


def _is_beyond_doubles(fact: Fact) -> bool:
    """A bound that every number keeps, once it is read as a double."""
    node = fact.node
    if isinstance(node, Minimum):
        return node.bound.value <= -_LARGEST_DOUBLE and not node.bound.is_open
    return isinstance(node, Maximum) and node.bound.value >= _LARGEST_DOUBLE and not node.bound.is_open


def _is_only_not_negative(branch: Branch) -> bool:
    return all(
        isinstance(f.node, Minimum) and f.node.bound.value == 0 and not f.node.bound.is_open for f in branch
    )


def _is_integer_range(branch: Branch) -> bool:
    bounds = [f for f in branch if isinstance(f.node, (Minimum, Maximum))]
    integer = [f for f in branch if isinstance(f.node, Integer) and f.is_true]
    return bool(bounds and integer) and len(bounds) + len(integer) == len(branch)


def _integer_bounds(branch: Branch) -> tuple[int | None, int | None]:
    """The least and the greatest integer."""
    lows = [f.node.bound for f in branch if isinstance(f.node, Minimum)]
    highs = [f.node.bound for f in branch if isinstance(f.node, Maximum)]
    least = [math.floor(b.value) + 1 if b.is_open else math.ceil(b.value) for b in lows]
    greatest = [math.ceil(b.value) - 1 if b.is_open else math.floor(b.value) for b in highs]
    return max(least, default=None), min(greatest, default=None)


def _base(branch: Branch) -> Expr:
    integer = [f for f in branch if isinstance(f.node, Integer)]
    if not integer:
        return PLAIN
    if len({f.is_true for f in integer}) == 2:
        return NOTHING
    return INTEGER if integer[0].is_true else fractional()


def _holds(fact: Fact, value: Decimal) -> bool:
    return _is_so(fact, value) == fact.is_true


def _is_so(fact: Fact, value: Decimal) -> bool:
    node = fact.node
    if isinstance(node, Minimum):
        return value > node.bound.value if node.bound.is_open else value >= node.bound.value
    if isinstance(node, Maximum):
        return value < node.bound.value if node.bound.is_open else value <= node.bound.value
    if isinstance(node, MultipleOf):
        return _is_multiple(value, node.step)
    if isinstance(node, Scalars):
        return value in node.numbers
    assert isinstance(node, Integer), node
    return value == value.to_integral_value()


def _is_multiple(value: Decimal, step: Decimal) -> bool:
    """Exactly, whatever their sizes."""
    return (value.as_integer_ratio()[0] * step.as_integer_ratio()[1]) % (
        step.as_integer_ratio()[0] * value.as_integer_ratio()[1]
    ) == 0


def _spelled(value: Decimal) -> Expr:
    """As it is usually written: 5, 0.5, 1e+100; and 5.0 where the schema itself has it so."""
    if value == value.to_integral_value() and value.copy_abs() < Decimal(10) ** 16:
        whole = literal(str(int(value)))
        exponent = value.as_tuple().exponent
        return alt(whole, literal(f"{int(value)}.0")) if exponent != 0 else whole
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return literal(str(int(value)))
    return literal(repr(float(value)))
