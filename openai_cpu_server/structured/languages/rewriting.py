"""Product of rules and states, which decide what texts may follow."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    ROOT,
    Alt,
    Expr,
    GrammarRules,
    Ref,
    Repeat,
    Seq,
    alt,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import InvalidGrammar

S = TypeVar("S")
MOST_RULES = 6_000
_MOST_UNROLLED = 16
"""Rounds that are written out, where each may end in another state."""


class RuleProduct(ABC, Generic[S]):
    def __init__(self, source: GrammarRules, whole: str, start: S) -> None:
        """`whole`: rule of all texts, which begin in the state `start`."""
        self._source = source
        self._expansions: dict[tuple[str, S], dict[S, Expr]] = {}
        self._users: dict[tuple[str, S], dict[tuple[str, S], None]] = {}
        self._waiting: dict[tuple[str, S], None] = {}
        self._names: dict[tuple[str, S, S], str] = {}
        self._ways = functools.cache(self._find_ways)
        """Ways of the present rule's parts, because expressions share parts."""
        self._whole = self._here = (whole, start)
        self._of_rule(self._whole)
        self._spread()

    @abstractmethod
    def _leaf(self, expr: Expr, before: S) -> dict[S, Expr]: ...

    def _may_end(self, state: S) -> bool:
        return True

    @property
    def rules(self) -> GrammarRules:
        found = {
            self._name(*key, after): expr
            for key, ways in self._expansions.items()
            for after, expr in ways.items()
        }
        ends = [after for after in self._expansions[self._whole] if self._may_end(after)]
        return {ROOT: alt(*(Ref(self._name(*self._whole, after)) for after in ends)), **found}

    def _spread(self) -> None:
        while self._waiting:
            self._here = key = next(iter(self._waiting))
            del self._waiting[key]
            self._ways.cache_clear()
            before, found = self._expansions[key], self._ways(self._source[key[0]], key[1])
            self._expansions[key] = found
            if found.keys() > before.keys():
                self._waiting |= self._users[key]
            if len(self._names) + len(self._expansions) > MOST_RULES:
                message = f"too large: more than {MOST_RULES} rules, each counted for each way to read it"
                raise InvalidGrammar(1, 1, message)

    def _of_rule(self, key: tuple[str, S]) -> dict[S, Expr]:
        self._users.setdefault(key, {})[self._here] = None
        if key not in self._expansions:
            self._expansions[key] = {}
            self._waiting[key] = None
        return {after: Ref(self._name(*key, after)) for after in self._expansions[key]}

    def _name(self, rule: str, before: S, after: S) -> str:
        number = len(self._names)
        return self._names.setdefault((rule, before, after), f"{rule.strip('_.')}.{number}")

    def _find_ways(self, expr: Expr, before: S) -> dict[S, Expr]:
        if isinstance(expr, Ref) and expr.name in self._source:
            return self._of_rule((expr.name, before))
        if isinstance(expr, Alt):
            return merged_ways(self._ways(item, before) for item in expr.items)
        if isinstance(expr, Repeat):
            return self._rounds(expr, before)
        if not isinstance(expr, Seq):
            return self._leaf(expr, before)
        return self._row(expr.items, before)

    def _row(self, items: Iterable[Expr], before: S) -> dict[S, Expr]:
        """Items with one way are joined at the end, because joining each would be quadratic."""
        found, row = {before: EMPTY}, list[Expr]()
        for item in items:
            if len(found) != 1:
                found = self._behind(found, item)
                continue
            ((at, prefix),) = found.items()
            ways = self._ways(item, at)
            if len(ways) == 1:
                row += ways.values()
                found = dict.fromkeys(ways, prefix)
            else:
                found = {after: seq(prefix, *row, expr) for after, expr in ways.items()}
                row = []
        return {after: seq(prefix, *row) for after, prefix in found.items()}

    def _behind(self, ways: dict[S, Expr], item: Expr) -> dict[S, Expr]:
        return merged_ways(
            {after: seq(prefix, expr) for after, expr in self._ways(item, before).items()}
            for before, prefix in ways.items()
        )

    def _rounds(self, expr: Repeat, before: S) -> dict[S, Expr]:
        """A repetition stays one if all rounds but the first end as they begin."""
        item, low, high = expr.item, expr.low, expr.high
        nothing: dict[S, Expr] = {before: EMPTY} if low == 0 else {}
        first = self._ways(item, before)
        if high == 1:
            return merged_ways([nothing, first])
        if len(first) > 1:
            return self._written_out(expr, before)
        after = next(iter(first), before)
        others = self._ways(item, after)
        if not others.keys() <= {after}:
            return self._written_out(expr, before)
        other = others.get(after, NOTHING)
        if after == before:
            return {after: repeat(other, low, high)}
        more = repeat(other, max(low - 1, 0), None if high is None else high - 1)
        return merged_ways([nothing, *({after: seq(start, more)} for start in first.values())])

    def _written_out(self, expr: Repeat, before: S) -> dict[S, Expr]:
        item, low, high = expr.item, expr.low, expr.high
        if max(low, high or 0) > _MOST_UNROLLED:
            times = f"{{{low},{high or ''}}}"
            raise InvalidGrammar(
                1, 1, f"a repetition {times} whose rounds may end in several ways is too long"
            )
        found: dict[S, Expr] = {before: EMPTY}
        for _ in range(low):
            found = self._behind(found, item)
        if high is None:
            again = f"again.{item.serial}"
            self._source.setdefault(again, alt(EMPTY, seq(item, Ref(again))))
            return self._behind(found, Ref(again))
        ends = [found]
        for _ in range(low, high):
            found = self._behind(found, item)
            ends.append(found)
        return merged_ways(ends)


def merged_ways(all_ways: Iterable[dict[S, Expr]]) -> dict[S, Expr]:
    found: dict[S, list[Expr]] = {}
    for ways in all_ways:
        for after, expr in ways.items():
            found.setdefault(after, []).append(expr)
    return {after: alt(*exprs) for after, exprs in found.items()}
