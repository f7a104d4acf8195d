"""Removal of left recursion: `a: a b | c` becomes `a: c b*`."""

from __future__ import annotations

from openai_cpu_server.structured.languages.expr import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Alt,
    Expr,
    Ref,
    Repeat,
    Rules,
    Seq,
    alt,
    both,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.languages.rules import Nullables, find_left_recursion
from openai_cpu_server.structured.options import InvalidGrammar

_MOST_STEPS = 10_000


class _Heads:
    """Expression split by the rule of the cycle that it begins with: `others`, and what follows each rule."""

    def __init__(self, others: Expr, rests: dict[str, Expr]) -> None:
        self.others = others
        self.rests = rests

    def then(self, rest: Expr) -> _Heads:
        return _Heads(seq(self.others, rest), {name: seq(x, rest) for name, x in self.rests.items()})

    def beside(self, other: _Heads) -> _Heads:
        rests = dict(self.rests)
        for name, rest in other.rests.items():
            rests[name] = alt(rests.get(name, NOTHING), rest)
        return _Heads(alt(self.others, other.others), rests)


FILLED = "!"
"""Suffix of a rule's name for the rule without the empty text."""


class FilledRules:
    def __init__(self, rules: Rules, steps: int = _MOST_STEPS) -> None:
        self.rules = dict(rules)
        self.nullable = Nullables(rules)
        self.steps = steps

    def spend(self, expr: Expr) -> None:
        self.steps -= 1 + len(expr.parts)
        if self.steps < 0:
            raise InvalidGrammar(1, 1, "too ambiguous: rules begin with themselves in too many ways")

    def filled(self, expr: Expr) -> Expr:
        """Return the expression without the empty text. Raises InvalidGrammar."""
        self.spend(expr)
        if expr not in self.nullable:
            return NOTHING if expr is EMPTY else expr
        if isinstance(expr, Ref):
            return self._reference(expr.name)
        if isinstance(expr, Alt):
            return alt(*(self.filled(item) for item in expr.items))
        if isinstance(expr, Repeat):
            item = self.filled(expr.item)
            least = expr.low if expr.item not in self.nullable else 0
            return repeat(item, max(least, 1), expr.high)
        if isinstance(expr, Seq):
            items = expr.items
            return alt(*(seq(self.filled(item), *items[at + 1 :]) for at, item in enumerate(items)))
        return both(expr, repeat(ANY_CHAR, 1, None))

    def _reference(self, name: str) -> Expr:
        own = name + FILLED
        if own not in self.rules:
            self.rules[own] = NOTHING  # it is being made, and may name itself
            self.rules[own] = self.filled(self.rules[name])
        return Ref(own)


def without_left_recursion(rules: Rules) -> Rules:
    """Return equivalent rules. Raises InvalidGrammar if that takes too many steps."""
    steps = _MOST_STEPS
    while (circle := find_left_recursion(rules)) is not None:
        filled = FilledRules(rules, steps)
        solved = _solved({name: rules[name] for name in circle}, filled)
        rules = {**filled.rules, **solved}
        steps = filled.steps
    return rules


def _solved(circle: Rules, filled: FilledRules) -> Rules:
    heads = {name: _cut(expr, circle, filled) for name, expr in circle.items()}
    names = list(circle)
    for index, name in enumerate(names):
        own = heads[name] = _repeated(name, heads[name])
        for later in names[index + 1 :]:
            filled.spend(heads[later].others)
            heads[later] = _put(name, own, heads[later])
    for index in reversed(range(len(names))):
        for earlier in names[:index]:
            heads[earlier] = _put(names[index], heads[names[index]], heads[earlier])
    return {name: each.others for name, each in heads.items()}


def _repeated(name: str, heads: _Heads) -> _Heads:
    again = heads.rests.pop(name, NOTHING)
    return heads if again in (NOTHING, EMPTY) else heads.then(star(again))


def _put(name: str, found: _Heads, into: _Heads) -> _Heads:
    rest = into.rests.pop(name, None)
    return into if rest is None else into.beside(found.then(rest))


def _cut(expr: Expr, circle: Rules, filled: FilledRules) -> _Heads:
    filled.spend(expr)
    if expr.references.isdisjoint(circle):
        return _Heads(expr, {})
    if isinstance(expr, Ref):
        return _Heads(NOTHING, {expr.name: EMPTY})
    if isinstance(expr, Alt):
        found = _Heads(NOTHING, {})
        for item in expr.items:
            found = found.beside(_cut(item, circle, filled))
        return found
    if isinstance(expr, Seq):
        first, rest = expr.items[0], seq(*expr.items[1:])
        if first not in filled.nullable or rest.references.isdisjoint(circle):
            return _cut(first, circle, filled).then(rest)
        return _cut(filled.filled(first), circle, filled).then(rest).beside(_cut(rest, circle, filled))
    assert isinstance(expr, Repeat), expr
    least = expr.low if expr.item not in filled.nullable else 0
    more = repeat(expr.item, max(least - 1, 0), None if expr.high is None else expr.high - 1)
    found = _cut(filled.filled(expr.item), circle, filled).then(more)
    return found.beside(_Heads(EMPTY, {})) if least == 0 else found
