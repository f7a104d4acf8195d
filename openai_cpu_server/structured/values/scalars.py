"""Languages and lexemes of strings, property names and numbers."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

from openai_cpu_server.structured.languages.automaton import Deriver, PlainLanguages
from openai_cpu_server.structured.languages.expr import (
    ALL,
    NOTHING,
    Alt,
    And,
    Expr,
    Not,
    Residue,
    alt,
    any_of,
    both,
    bounded,
    every_expression,
    literal,
    negate,
    optional,
    seq,
)
from openai_cpu_server.structured.logic.goals import Conjunction, Fact, Goal, Goals, limits_of
from openai_cpu_server.structured.options import Budget, Limits, UnenforcedReport
from openai_cpu_server.structured.scalars import numbers, regex
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.nodes import JsonKind, Node
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.notations import JsonText, plain_text

_MOST_LOOKED_AT = 8


class StringLanguages:
    def __init__(self, goals: Goals, budget: Budget, report: UnenforcedReport) -> None:
        self._goals = goals
        self._report = report
        self._budget = budget
        self.pattern = functools.cache(lambda pattern: regex.search_language(pattern, budget.limits))
        self.plain = PlainLanguages(budget)
        self._deriver = Deriver(budget)

    def language(self, branch: Conjunction) -> Expr:
        return self._language(self._without_clashes(branch))

    def _language(self, branch: Conjunction) -> Expr:
        if any(isinstance(f.node, nodes.Scalars) and f.is_true for f in branch):
            return any_of(self._listed(branch))
        low, high = limits_of(branch)
        return bounded(both(*self._parts(branch)), low, high)

    def listed(self, branch: Conjunction) -> list[str]:
        return self._listed(self._without_clashes(branch))

    def _listed(self, branch: Conjunction) -> list[str]:
        lists = [f.node.strings for f in branch if isinstance(f.node, nodes.Scalars) and f.is_true]
        common = [x for x in lists[0] if all(x in other for other in map(set, lists[1:]))]
        low, high = limits_of(branch)
        parts = self._parts(branch)
        sized = [x for x in common if len(x) >= low and (high is None or len(x) <= high)]
        return [x for x in sized if all(self.matches(part, x) for part in parts)]

    def _without_clashes(self, branch: Conjunction) -> Conjunction:
        """Formats give way to other facts, because a format is an annotation in the standard."""
        formats = [f for f in branch if isinstance(f.node, nodes.Format) and f.is_true]
        others = tuple(f for f in branch if f not in formats)
        if not formats or all(isinstance(f.node, nodes.Format) for f in others):
            return branch
        if not self.plain.is_empty(self._language(branch)):
            return branch
        if self.plain.is_empty(self._language(others)):
            return branch
        for fact in formats:
            self._report.note(*self._goals.table.place(fact.number))
        return others

    def _parts(self, branch: Conjunction) -> list[Expr]:
        has_pattern = any(isinstance(f.node, nodes.Pattern) for f in branch)
        formats = regex.FORMATS_BESIDE_PATTERNS if has_pattern else regex.STRING_FORMATS
        found = []
        for fact in branch:
            match fact.node:
                case nodes.Pattern(pattern):
                    language = self.pattern(pattern)
                case nodes.Format(name):
                    language = _format_language(formats[name])
                case nodes.Scalars(strings=strings) if not fact.is_true:
                    language = any_of(strings)
                case _:
                    assert isinstance(fact.node, (nodes.Size, nodes.Scalars)), fact.node
                    continue
            found.append(language if fact.is_true else negate(language))
        return found

    def listed_of(self, goal: Goal) -> list[str] | None:
        branches = self._goals.branches(goal, JsonKind.STRING)
        if not all(any(isinstance(f.node, nodes.Scalars) and f.is_true for f in b) for b in branches):
            return None
        return list(dict.fromkeys(text for branch in branches for text in self.listed(branch)))

    def matches(self, language: Expr, text: str) -> bool:
        return self._deriver.matches(language, text)

    def of_goal(self, goal: Goal) -> Expr:
        languages = [self.language(b) for b in self._goals.branches(goal, JsonKind.STRING)]
        return ALL if ALL in languages else alt(*languages)


@functools.lru_cache(maxsize=len(regex.STRING_FORMATS))
def _format_language(pattern: str) -> Expr:
    return regex.full_language(pattern, Limits())


class ScalarLexemes:
    def __init__(self, grammar: GrammarBuilder, strings: StringLanguages, texts: JsonText) -> None:
        self.grammar = grammar
        self.text = texts
        self._strings = strings

    def string(self, language: Expr) -> Expr:
        rest, texts = _without_texts(language)
        if texts and not rest.is_extended:
            return self.grammar.define("string", self.text.none_of(texts, rest))
        simple = self._strings.plain.simplified(language)
        if simple is not None:
            return self.text.string(simple)
        return self.text.by_states(self._strings.plain.automaton(language))

    def name(self, language: Expr, excluded: tuple[str, ...]) -> Expr:
        """Return NOTHING if all names are excluded."""
        unwanted = [n for n in excluded if self._strings.matches(language, n)]
        if self._strings.plain.is_empty(both(language, negate(any_of(unwanted[:_MOST_LOOKED_AT])))):
            return NOTHING
        if not unwanted:
            return self.string(language)
        rest, texts = _without_texts(language)
        simple = self._strings.plain.simplified(rest)
        if simple is None:
            return self.string(both(language, negate(any_of(unwanted))))
        return self.text.none_of(list(dict.fromkeys([*texts, *unwanted])), simple)


_MANY_TEXTS = 8
"""Number of texts that the reader excludes, because an automaton would have a state for each letter."""


def _without_texts(language: Expr) -> tuple[Expr, list[str]]:
    rest: list[Expr] = []
    excluded: list[str] = []
    for item in language.items if isinstance(language, And) else (language,):
        options = item.item.items if isinstance(item, Not) and isinstance(item.item, Alt) else ()
        texts = [text for x in options if (text := plain_text(x)) is not None]
        if len(texts) < max(len(options), _MANY_TEXTS):
            rest.append(item)
        else:
            excluded += texts
    return both(*rest), excluded


_LARGEST_MODULUS = 1_000
_MOST_COUNTED = 32
"""Remainders that fit into the limit of states, times twice 20 digits."""
_USUAL_DIGITS = 40
_MOST_MULTIPLES = 1_500
_MOST_REMAINDERS = 4_096
"""Largest step that llguidance counts: 3,600 take 0.1 s for 550 numbers, 65,536 take 2.6 s."""
_LEAST_INT, _GREATEST_INT = -(2**63), 2**63 - 1
_LEAST_BOUND = _LEAST_INT + 1024
"""Least lower bound that llguidance takes, because it turns doubles into 64 bits."""
_MOST_DISTANT = 10**18
"""llguidance takes no range that begins farther from zero."""
_NOT_NEGATIVE = nodes.Limit(numbers.Bound(Decimal(0), is_open=False), is_upper=False)
_LARGEST_DOUBLE = Decimal(repr(sys.float_info.max))


class NumberLanguages:
    def __init__(self, goals: Goals) -> None:
        self._goals = goals

    def language(self, branch: Conjunction) -> Expr:
        """Exponents of other than small numbers are left out where facts are checked digit by digit."""
        within = tuple(f for f in branch if not _is_beyond_doubles(f))
        if any(isinstance(f.node, nodes.Scalars) and f.is_true for f in within):
            return alt(*map(spelled, self.listed(within)))
        if _is_empty_range(within):
            return NOTHING
        if not within:
            return seq(optional(literal("-")), numbers.FINITE) if branch else numbers.NUMBER
        if all(f.node == _NOT_NEGATIVE for f in within):
            return numbers.NOT_NEGATIVE if within == branch else numbers.FINITE
        near = self._within_digits(within)
        if _is_integer_range(near):
            return numbers.integers_between(*_integer_bounds(near))
        listed = _listed_multiples(near)
        if listed is not None:
            return alt(*(literal(str(x)) for x in listed))
        decimals = _decimals(near)
        plain = [self._part(f, decimals) for f in near if not isinstance(f.node, nodes.Integer)]
        is_range = all(isinstance(f.node, nodes.Limit) for f in near)
        if not near or not is_range:
            plain.append(_base(near, *_widths(plain, decimals)))
        return alt(both(*plain), _small(near) if is_range else NOTHING)

    def _within_digits(self, branch: Conjunction) -> Conjunction:
        most = numbers.MOST_BOUND_DIGITS
        far = [f for f in branch if isinstance(f.node, nodes.Limit) and f.node.bound.value.adjusted() >= most]
        near = tuple(f for f in branch if f not in far)
        self._refuse_bounds(f for f in far if not _holds(f, Decimal(0)))
        rounded = tuple(replace(f, node=_rounded(f.node)) for f in near)
        if _is_empty_range(rounded) and not _is_empty_range(near):
            fine = [old for old, new in zip(near, rounded, strict=True) if old.node != new.node]
            self._refuse_bounds(fine)
            return tuple(f for f in near if f not in fine)
        return rounded

    def _refuse_bounds(self, facts: Iterable[Fact]) -> None:
        reason = f"takes numbers of more than {numbers.MOST_BOUND_DIGITS} digits, which cannot be enforced"
        self._goals.refuse((fact.number for fact in facts), reason)

    def multiples(self, branch: Conjunction) -> Expr | None:
        """Return multiples that llguidance counts, or None if an automaton does."""
        steps = [f.node.step for f in branch if isinstance(f.node, nodes.MultipleOf) and f.is_true]
        others = [f for f in branch if not isinstance(f.node, (nodes.MultipleOf, nodes.Limit))]
        are_steps = len(steps) + len(others) + sum(map(len, _bounds(branch))) == len(branch)
        if not are_steps or not all(isinstance(f.node, nodes.Integer) and f.is_true for f in others):
            return None
        if any(step != step.to_integral_value() for step in steps):
            return None
        step = math.lcm(*map(int, steps))
        is_round = str(step).rstrip("0") == "1"
        if not _MOST_COUNTED < step <= _MOST_REMAINDERS or is_round or _listed_multiples(branch) is not None:
            return None
        low, high = _integer_bounds(branch)
        if (low or 0) >= _MOST_DISTANT or (high or 0) <= -_MOST_DISTANT:
            return None
        least = None if low is None else -(-max(low, _LEAST_INT) // step) * step
        greatest = None if high is None else min(high, _GREATEST_INT) // step * step
        if least is not None and greatest is not None and least > greatest:
            return NOTHING
        first = None if least is None else max(-_exact_bound(-least, step), _LEAST_BOUND)
        last = None if greatest is None else _exact_bound(greatest, step)
        if first is not None and last is not None and first > last:
            return None
        beside: list[int] = []
        if least is not None and first is not None:
            beside += range(least, first, step)
        if greatest is not None and last is not None:
            beside += range(last // step * step + step, greatest + 1, step)
        return alt(numbers.multiples_between(step, first, last), *(literal(str(x)) for x in beside))

    def listed(self, branch: Conjunction) -> list[Decimal]:
        first = next(f.node for f in branch if isinstance(f.node, nodes.Scalars) and f.is_true)
        return [x for x in first.numbers if all(_holds(f, x) for f in branch)]

    def _part(self, fact: Fact, decimals: numbers.Decimals) -> Expr:
        node = fact.node
        if isinstance(node, nodes.Limit):
            return decimals.at_most(node.bound) if node.is_upper else decimals.at_least(node.bound)
        if isinstance(node, nodes.MultipleOf):
            found = self._multiples(fact, node.step)
        else:
            assert isinstance(node, nodes.Scalars), node
            found = alt(*(numbers.equal_to(x) for x in node.numbers))
        return found if fact.is_true else negate(found)

    def _multiples(self, fact: Fact, step: Decimal) -> Expr:
        zeros = step.adjusted()
        if step == Decimal(10) ** zeros and 0 <= zeros <= numbers.MOST_BOUND_DIGITS:
            return numbers.round_numbers(zeros)
        digits = -min(int(step.as_tuple().exponent), 0)
        if digits <= 20 and step.scaleb(digits) <= _LARGEST_MODULUS:
            return numbers.multiple_of(step)
        self._goals.refuse([fact.number], f"by {step} needs too large an automaton")
        return numbers.PLAIN if fact.is_true else NOTHING


def _exact_bound(greatest: int, step: int) -> int:
    """Return a bound of the multiples up to `greatest` that is exact as a double. Some multiples may be above
    it."""
    bound = greatest + step - 1
    if bound >= _GREATEST_INT:
        return _GREATEST_INT
    rounded = float(bound)
    return int(rounded) if int(rounded) <= bound else int(math.nextafter(rounded, -math.inf))


def _is_beyond_doubles(fact: Fact) -> bool:
    node = fact.node
    if not isinstance(node, nodes.Limit) or node.bound.is_open:
        return False
    value = node.bound.value
    return value >= _LARGEST_DOUBLE if node.is_upper else value <= -_LARGEST_DOUBLE


_FINEST = Decimal(1).scaleb(-numbers.MOST_BOUND_DIGITS)
_EXACT = Context(prec=2 * numbers.MOST_BOUND_DIGITS + 2)


def _rounded(node: Node) -> Node:
    """Drop digits that are too fine to be checked, and thereby some numbers."""
    if not isinstance(node, nodes.Limit):
        return node
    if int(node.bound.value.as_tuple().exponent) >= -numbers.MOST_BOUND_DIGITS:
        return node
    rounding = ROUND_FLOOR if node.is_upper else ROUND_CEILING
    value = node.bound.value.quantize(_FINEST, rounding, _EXACT)
    return nodes.Limit(numbers.Bound(value, is_open=False), node.is_upper)


def _is_empty_range(branch: Conjunction) -> bool:
    lows, highs = _bounds(branch)
    return any(
        low.value > high.value or (low.value == high.value and (low.is_open or high.is_open))
        for low in lows
        for high in highs
    )


def _decimals(branch: Conjunction) -> numbers.Decimals:
    least = numbers.Decimals()
    bounds = [f.node.bound.value for f in branch if isinstance(f.node, nodes.Limit)]
    steps = [f.node.step for f in branch if isinstance(f.node, nodes.MultipleOf)]
    whole = 2 + max([0, *(x.adjusted() for x in bounds)]) + sum(x.adjusted() + 1 for x in steps if x > 1)
    fraction = 1 + max([0, *(-int(x.as_tuple().exponent) for x in bounds)])
    return numbers.Decimals(max(whole, least.whole_digits), max(fraction, least.fraction_digits))


def _small(branch: Conjunction) -> Expr:
    lows, highs = _bounds(branch)
    low = max((bound.value for bound in lows), default=Decimal(-1))
    high = min((bound.value for bound in highs), default=Decimal(1))
    positive = numbers.SMALL if low <= 0 and high >= 1 else NOTHING
    negative = seq(literal("-"), numbers.SMALL) if low <= -1 and high >= 0 else NOTHING
    return alt(positive, negative)


def _is_integer_range(branch: Conjunction) -> bool:
    bounds = [f for f in branch if isinstance(f.node, nodes.Limit)]
    integer = [f for f in branch if isinstance(f.node, nodes.Integer) and f.is_true]
    return bool(bounds and integer) and len(bounds) + len(integer) == len(branch)


def _bounds(branch: Conjunction) -> tuple[list[numbers.Bound], list[numbers.Bound]]:
    limits = [f.node for f in branch if isinstance(f.node, nodes.Limit)]
    return [x.bound for x in limits if not x.is_upper], [x.bound for x in limits if x.is_upper]


def _integer_bounds(branch: Conjunction) -> tuple[int | None, int | None]:
    lows, highs = _bounds(branch)
    least = [math.floor(b.value) + 1 if b.is_open else math.ceil(b.value) for b in lows]
    greatest = [math.ceil(b.value) - 1 if b.is_open else math.floor(b.value) for b in highs]
    return max(least, default=None), min(greatest, default=None)


def few_integers(branch: Conjunction, most: int) -> range | None:
    if not _is_integer_range(branch):
        return None
    low, high = _integer_bounds(branch)
    return range(low, high + 1) if low is not None and high is not None and high - low < most else None


def _listed_multiples(branch: Conjunction) -> list[int] | None:
    steps = [f.node.step for f in branch if isinstance(f.node, nodes.MultipleOf) and f.is_true]
    low, high = _integer_bounds(branch)
    is_integer = any(isinstance(f.node, nodes.Integer) and f.is_true for f in branch)
    if not steps or not is_integer or low is None or high is None:
        return None
    step = max(steps)
    if step != step.to_integral_value() or (high - low) // int(step) > _MOST_MULTIPLES:
        return None
    first = -(-low // int(step)) * int(step)
    found = range(first, high + 1, int(step))
    return [x for x in found if all(_holds(f, Decimal(x)) for f in branch)]


def _base(branch: Conjunction, whole: Expr, plain: Expr) -> Expr:
    integer = [f for f in branch if isinstance(f.node, nodes.Integer)]
    if not integer:
        return plain
    if len({f.is_true for f in integer}) == 2:
        return NOTHING
    return whole if integer[0].is_true else numbers.fractional()


def _widths(parts: list[Expr], decimals: numbers.Decimals) -> tuple[Expr, Expr]:
    """Digits are counted unless that takes too many states, one for each remainder and number of digits."""
    remainders = math.prod({x.modulus for x in every_expression(parts) if isinstance(x, Residue)})
    num_digits = decimals.whole_digits + decimals.fraction_digits
    is_counted = remainders * num_digits <= _MOST_COUNTED * _USUAL_DIGITS
    return (decimals.integers, decimals.all) if is_counted else numbers.UNCOUNTED


def _holds(fact: Fact, value: Decimal) -> bool:
    node = fact.node
    if isinstance(node, nodes.Limit):
        bound = node.bound
        fits = not bound.is_open if value == bound.value else (value < bound.value) == node.is_upper
    elif isinstance(node, nodes.MultipleOf):
        fits = Fraction(value) % Fraction(node.step) == 0
    elif isinstance(node, nodes.Scalars):
        fits = value in node.numbers
    else:
        assert isinstance(node, nodes.Integer), node
        fits = value == value.to_integral_value()
    return fits == fact.is_true


def spelled(value: Decimal) -> Expr:
    """Return the usual spelling (5, 0.5, 1e+100), and 5.0 if the schema writes that."""
    if value == value.to_integral_value() and value.copy_abs() < Decimal(10) ** 16:
        whole = literal(str(int(value)))
        exponent = value.as_tuple().exponent
        return alt(whole, literal(f"{int(value)}.0")) if exponent != 0 else whole
    if value == value.to_integral_value() and value.as_tuple().exponent == 0:
        return literal(str(int(value)))
    return literal(repr(float(value)))
