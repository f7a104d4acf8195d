"""What a schema evaluates of an object or an array, and the ways for that to come about.

A schema that passes evaluates what those of its subschemas do that pass. So there are several ways: one for
each choice of alternatives. The more of them pass, the more is evaluated and the less is left to constrain:
so a way need not say what does not pass, it just sees less. All ways together are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from openai_cpu_server.structured.nodes import FALSE, TRUE, Items, Kind, Properties, Table
from openai_cpu_server.structured.options import Budget

_MOST_WAYS = 64
_MOST_TRIED = 256
_PAIRS_PER_STEP = 8


class TooManyWays(Exception):
    """More alternatives, and combinations of them, than a grammar should be made of."""


@dataclass(frozen=True)
class Evaluated:
    everything: bool = False
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """Properties whose names match one of these."""
    prefix: int = 0
    """So many items, from the first one."""
    matching: tuple[int, ...] = ()
    """Items that fit one of these nodes."""

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
        """The node that asks all else to fit `rest`; `place` (path, keyword) is to blame in errors."""
        if self.everything:
            return TRUE
        if kind is Kind.ARRAY:
            return table.add(Items((TRUE,) * self.prefix, table.any(*self.matching, rest)), *place)
        named = tuple((n, TRUE) for n in self.names)
        return table.add(Properties(named, tuple((p, TRUE) for p in self.patterns), rest), *place)


EVERYTHING = Evaluated(everything=True)
NOTHING_SEEN = Evaluated()


@dataclass(frozen=True)
class Way:
    """Where all the guards (nodes) hold, at least so much is evaluated."""

    guards: tuple[int, ...] = ()
    seen: Evaluated = NOTHING_SEEN

    def join(self, other: Way) -> Way:
        """Both at once. To see nothing, no guard is needed."""
        seen = self.seen.union(other.seen)
        return Way() if seen == NOTHING_SEEN else Way(tuple(dict.fromkeys(self.guards + other.guards)), seen)

    def is_covered_by(self, other: Way) -> bool:
        """Whether the other one asks for no more and sees no less."""
        return set(other.guards) <= set(self.guards) and self.seen.is_within(other.seen)


@dataclass(frozen=True)
class Option:
    """A subschema: its node, and the ways in which it evaluates what it does if it passes."""

    number: int
    ways: list[Way]

    @property
    def guarded(self) -> list[Way]:
        """The ways, each only for where the subschema passes."""
        if self.number == FALSE:
            return []
        guard = Way() if self.number == TRUE else Way((self.number,), NOTHING_SEEN)
        return list(dict.fromkeys(guard.join(w) for w in self.ways))


class Combiner:
    """Puts ways together. `may_meet` tells if both nodes may hold at once."""

    def __init__(self, may_meet: Callable[[int, int], bool], budget: Budget) -> None:
        self._may_meet = may_meet
        self._budget = budget

    def both(self, one: list[Way], other: list[Way]) -> list[Way]:
        """Of two subschemas that pass. Raises TooManyWays."""
        self._budget.spend("unfolded", len(one) * len(other) // _PAIRS_PER_STEP)
        found: list[Way] = []
        for a, b in itertools.product(one, other):
            found += [a.join(b)] if self._meet(a, b) else []
            _check(len(found))
        return pruned(found)

    def some_of(self, options: list[Option]) -> list[Way]:
        """Of subschemas of which one passes at least. Raises TooManyWays."""
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
    """Without those that others cover. Raises TooManyWays."""
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
