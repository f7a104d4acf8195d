"""Puts facts about arrays together:
the goal of each place, the number of items, and which items must occur."""

from __future__ import annotations

import msgspec

from openai_cpu_server.structured.logic.goals import ANYTHING, Branch, Goal, Goals, join
from openai_cpu_server.structured.schema.nodes import Contains, Count, Items, Unique


class Need(msgspec.Struct, frozen=True):
    """At least `low` and at most `high` items fit `item` (None: any number)."""

    item: Goal
    without: Goal
    """The negation of `item`."""
    low: int
    high: int | None
    place: int
    """The number of the node that asks for this, for errors."""


class ArrayShape(msgspec.Struct, frozen=True):
    prefix: tuple[Goal, ...]
    rest: Goal
    low: int
    high: int | None
    needs: tuple[Need, ...]
    unique: int | None
    """The number of the node that asks for unique items; None: nothing does."""

    def item(self, index: int) -> Goal:
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def without(self, place: int) -> ArrayShape:
        """The shape without what this node asks for: unique items, or items that must occur."""
        return (
            msgspec.structs.replace(self, unique=None)
            if place == self.unique
            else msgspec.structs.replace(self, needs=())
        )


def array_shape(branch: Branch, goals: Goals) -> ArrayShape | None:
    """The shape of the arrays that fit all facts; None if no array fits."""
    needs = [_need(f.node, f.number) for f in branch if isinstance(f.node, Contains)]
    if any(n.high is not None and n.high < n.low for n in needs):
        return None
    banned = [n.without for n in needs if n.high == 0]
    prefix, rest = _items([f.node for f in branch if isinstance(f.node, Items)], join(*banned))
    low, high = _count(branch)
    high = _reachable(prefix, rest, high, goals)
    needs = [n for n in needs if n.high != 0 and (n.low or n.high is not None)]
    low = max([low, *(n.low for n in needs)])
    if high is not None and low > high:
        return None
    if any(n.low and not _possible_somewhere(n, prefix, rest, high, goals) for n in needs):
        return None
    unique = next((f.number for f in branch if isinstance(f.node, Unique)), None)
    if high is not None:
        prefix = prefix[:high]
    return ArrayShape(prefix, rest, low, high, tuple(needs), unique if high is None or high > 1 else None)


def _need(node: Contains, number: int) -> Need:
    return Need(((node.item, True),), ((node.item, False),), node.low, node.high, number)


def _items(facts: list[Items], banned: Goal) -> tuple[tuple[Goal, ...], Goal]:
    longest = max((len(f.prefix) for f in facts), default=0)
    prefix = []
    for i in range(longest):
        parts = [((f.prefix[i] if i < len(f.prefix) else f.rest, True),) for f in facts]
        prefix.append(join(*parts, banned))
    rest = join(*(((f.rest, True),) for f in facts), banned) if facts or banned else ANYTHING
    return tuple(prefix), rest


def _count(branch: Branch) -> tuple[int, int | None]:
    counts = [f.node for f in branch if isinstance(f.node, Count)]
    highs = [c.high for c in counts if c.high is not None]
    return max((c.low for c in counts), default=0), min(highs, default=None)


def _reachable(prefix: tuple[Goal, ...], rest: Goal, high: int | None, goals: Goals) -> int | None:
    """The most items that an array can have, given that nothing fits some places."""
    places = [i for i, goal in enumerate(prefix) if not goals.satisfiable(goal)]
    if not goals.satisfiable(rest):
        places.append(len(prefix))
    ends = places + ([] if high is None else [high])
    return min(ends, default=None)


def _possible_somewhere(
    need: Need, prefix: tuple[Goal, ...], rest: Goal, high: int | None, goals: Goals
) -> bool:
    places = list(prefix if high is None else prefix[:high])
    if high is None or high > len(prefix):
        places.append(rest)
    return any(goals.satisfiable(join(place, need.item)) for place in places)
