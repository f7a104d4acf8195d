"""What a schema evaluates of an object or an array, and in which ways.

A schema that passes evaluates what its subschemas evaluate, if these pass too. So there are several ways: one
for each choice of alternatives. The more alternatives pass, the more is evaluated, and the less is left to
constrain. So a way need not say which alternatives fail: it just sees less. All ways together are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from openai_cpu_server.structured.options import Budget
from openai_cpu_server.structured.schema.nodes import FALSE, TRUE, Items, Kind, Properties, Table

_MOST_WAYS = 64
_MOST_TRIED = 256
_PAIRS_PER_STEP = 8


class TooManyWays(Exception):
    """There are more alternatives, and combinations of them, than a grammar should consist of."""


@dataclass(frozen=True)
class Evaluated:
    everything: bool = False
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Properties whose names match one of these patterns are evaluated."""
    prefix: int = 0
    """The first so many items are evaluated."""
    matching: tuple[int, ...] = ()
    """Items that fit one of these nodes are evaluated."""

    def union(self, other: Evaluated) -> Evaluated:
        if self.everything or other.everything:
            return EVERYTHING
        return Evaluated(
            names=tuple(dict.fromkeys(self.names + other.names)),
            patterns=tuple(dict.fromkeys(self.patterns + other.patterns)),
            prefix=max(self.prefix, other.prefix),
            matching=tuple(dict.fromkeys(self.matching + other.matching)),
        )

    @cached_property
    def _listed(self) -> frozenset[tuple[str, object]]:
        names = [("name", x) for x in self.names]
        patterns = [("pattern", x) for x in self.patterns]
        return frozenset([*names, *patterns, *(("matching", x) for x in self.matching)])

    def is_within(self, other: Evaluated) -> bool:
        if self.everything or other.everything:
            return other.everything
        return self.prefix <= other.prefix and self._listed <= other._listed

    def beyond(self, rest: int, kind: Kind, table: Table, place: tuple[str, str]) -> int:
        """The node that makes everything not evaluated fit `rest`. Errors name `place` (path, keyword)."""
        if self.everything:
            return TRUE
        if kind is Kind.ARRAY:
            return table.add(Items((TRUE,) * self.prefix, table.any(*self.matching, rest)), *place)
        named = tuple((n, TRUE) for n in self.names)
        return table.add(Properties(named, tuple((p, TRUE) for p in self.patterns), rest), *place)


EVERYTHING = Evaluated(everything=True)
NOTHING_SEEN = Evaluated()


class Way(msgspec.Struct, frozen=True):
    """Where all the guards (nodes) hold, at least `seen` is evaluated."""

    guards: tuple[int, ...] = ()
    seen: Evaluated = NOTHING_SEEN

    def join(self, other: Way) -> Way:
        """The way in which both hold. A way that sees nothing needs no guard."""
        seen = self.seen.union(other.seen)
        return Way() if seen == NOTHING_SEEN else Way(tuple(dict.fromkeys(self.guards + other.guards)), seen)

    def is_covered_by(self, other: Way) -> bool:
        """Whether the other way needs no further guard and sees at least as much."""
        return set(other.guards) <= set(self.guards) and self.seen.is_within(other.seen)


class Option(msgspec.Struct, frozen=True):
    """A subschema: its node, and the ways in which it evaluates values that pass it."""

    number: int
    ways: list[Way]

    @property
    def guarded(self) -> list[Way]:
        """The ways, each with the subschema itself as a further guard."""
        if self.number == FALSE:
            return []
        guard = Way() if self.number == TRUE else Way((self.number,), NOTHING_SEEN)
        return list(dict.fromkeys(guard.join(w) for w in self.ways))


class Combiner:
    """Combines ways. `may_meet` tells whether two nodes may hold at once."""

    def __init__(self, may_meet: Callable[[int, int], bool], budget: Budget) -> None:
        self._may_meet = may_meet
        self._budget = budget

    def both(self, one: list[Way], other: list[Way]) -> list[Way]:
        """The ways of two subschemas that both pass. Raises TooManyWays."""
        self._budget.spend("unfolded", len(one) * len(other) // _PAIRS_PER_STEP)
        found: list[Way] = []
        for a, b in itertools.product(one, other):
            found += [a.join(b)] if self._meet(a, b) else []
            _check(len(found))
        return pruned(found)

    def some_of(self, options: list[Option]) -> list[Way]:
        """The ways of subschemas of which at least one passes. Raises TooManyWays."""
        found: list[Way] = []
        is_nothing_seen = False
        for option in options:
            useful = [w for w in option.guarded if w.seen != NOTHING_SEEN]
            is_nothing_seen |= len(useful) < len(option.guarded)
            found += [*useful, *self.both(found, useful)]
            _check(len(found))
        return pruned([Way(), *found] if is_nothing_seen else found)

    def _meet(self, one: Way, other: Way) -> bool:
        return all(self._may_meet(x, y) for x in one.guards for y in other.guards)


def pruned(ways: list[Way]) -> list[Way]:
    """The ways without those that another way covers. Raises TooManyWays."""
    _check(len(ways))
    kept: list[Way] = []
    for way in ways:
        if not any(way.is_covered_by(k) for k in kept):
            kept = [*(k for k in kept if not k.is_covered_by(way)), way]
    if len(kept) > _MOST_WAYS:
        raise TooManyWays
    return kept


def _check(num_ways: int) -> None:
    if num_ways > _MOST_TRIED:
        raise TooManyWays
