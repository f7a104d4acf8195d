"""Tells objects apart by properties that must be present with one of a few values.

Without this, `oneOf` of many kinds of objects, and many `if`s on one property, would be unfolded in every
combination.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.structured.logic.truths import settled
from openai_cpu_server.structured.schema.nodes import (
    TRUE,
    AllOf,
    AnyOf,
    Constant,
    Negation,
    NodeTable,
    OneOf,
    Properties,
    Reference,
    Required,
    Scalars,
)

Values = frozenset[tuple[str, object]]
"""Scalars with the names of their types, as 1 is not true."""


class PropertyMark(msgspec.Struct, frozen=True):
    """What one schema says about a property, if it is present."""

    name: str
    listed: Values | None
    """The property has one of these values; None: there is no list."""
    unlisted: Values
    """The property has none of these values."""


class MarkedObject(msgspec.Struct):
    """What is known of an object while its facts are collected."""

    _required: set[str] = msgspec.field(default_factory=set)
    _marks: dict[str, PropertyMark] = msgspec.field(default_factory=dict)

    def copy(self) -> MarkedObject:
        return MarkedObject(set(self._required), dict(self._marks))

    def require(self, names: tuple[str, ...]) -> bool:
        """Require these properties; False if one of them has no value left."""
        self._required.update(names)
        return all(self._is_possible(n) for n in names)

    def add(self, mark: PropertyMark) -> bool:
        """Add a mark; False if its property is required and has no value left."""
        known = self._marks.get(mark.name)
        if known is not None:
            listed = _common(known.listed, mark.listed)
            mark = PropertyMark(mark.name, listed, known.unlisted | mark.unlisted)
        self._marks[mark.name] = mark
        return self._is_possible(mark.name)

    def must_have(self, names: tuple[str, ...]) -> bool:
        return self._required.issuperset(names)

    def listed(self, name: str) -> Values | None:
        """The values that the property may have; None: any value."""
        mark = self._marks.get(name)
        return None if mark is None or mark.listed is None else mark.listed - mark.unlisted

    def _is_possible(self, name: str) -> bool:
        return name not in self._required or self.listed(name) != frozenset()


class MarkReader:
    """Reads marks off nodes, each node once. `look_up` gives the node at a pointer."""

    def __init__(self, table: NodeTable, look_up: Callable[[str], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._listed: dict[int, Values | None] = {}
        self._required: dict[int, dict[str, Values]] = {}
        self._said: dict[Properties, tuple[PropertyMark, ...]] = {}

    def said_by(self, node: Properties) -> tuple[PropertyMark, ...]:
        if node not in self._said:
            marks = [PropertyMark(name, self._values(v), self._banned(v)) for name, v in node.named]
            self._said[node] = tuple(m for m in marks if m.listed is not None or m.unlisted)
        return self._said[node]

    def tell_apart(self, one: int, other: int) -> bool:
        """Whether surely no object fits both nodes."""
        ours, theirs = self._of(one), self._of(other)
        return any(name in theirs and not values & theirs[name] for name, values in ours.items())

    def imply(self, known: MarkedObject, number: int) -> bool:
        """Whether surely every object of which so much is known fits the node."""
        node = self._table[number]
        if isinstance(node, Required):
            return known.must_have(node.names)
        if isinstance(node, AllOf):
            return all(self.imply(known, x) for x in node.items)
        if isinstance(node, Properties) and not node.patterns and node.rest == TRUE:
            return all(self._all_fit(known.listed(name), value) for name, value in node.named)
        return False

    def _all_fit(self, values: Values | None, number: int) -> bool:
        """Whether surely all these values fit the node; None: all values there are."""
        node = self._table[number]
        if number == TRUE or values is None:
            return number == TRUE
        if isinstance(node, Negation):
            return isinstance(self._table[node.item], Scalars) and not values & self._banned(number)
        return isinstance(node, Scalars) and values <= _values_of(node)

    def _of(self, number: int) -> dict[str, Values]:
        """By name, the values that a property must have in every object that fits the node."""
        return settled(number, self._required, self._in_place, self._found, {})

    def _in_place(self, number: int) -> Sequence[int]:
        """The nodes that say of the same value what this one says."""
        node = self._table[number]
        if isinstance(node, Reference):
            return (self._look_up(node.pointer),)
        return node.items if isinstance(node, (AllOf, AnyOf, OneOf)) else ()

    def _found(self, number: int, parts: list[dict[str, Values]]) -> dict[str, Values]:
        node = self._table[number]
        if isinstance(node, Reference):
            return parts[0]
        if isinstance(node, (AnyOf, OneOf)):
            first, *others = parts
            shared = [n for n in first if all(n in o for o in others)]
            return {n: first[n].union(*(o[n] for o in others)) for n in shared}
        return self._of_all(node, parts) if isinstance(node, AllOf) else {}

    def _of_all(self, node: AllOf, items: list[dict[str, Values]]) -> dict[str, Values]:
        parts = [self._table[x] for x in node.items]
        names = {n for part in parts if isinstance(part, Required) for n in part.names}
        marks = [m for part in parts if isinstance(part, Properties) for m in self.said_by(part)]
        found = {m.name: m.listed for m in marks if m.name in names and m.listed is not None}
        for item in items:
            for name, values in item.items():
                found[name] = found.get(name, values) & values
        return found

    def _values(self, number: int) -> Values | None:
        """The only values that fit the node; None if that is not plain."""
        return settled(number, self._listed, self._in_place, self._listed_by, None)

    def _listed_by(self, number: int, parts: list[Values | None]) -> Values | None:
        node = self._table[number]
        if isinstance(node, Scalars):
            return _values_of(node)
        if isinstance(node, Reference):
            return parts[0]
        if isinstance(node, AllOf):
            found: Values | None = None
            for part in parts:
                found = _common(found, part)
            return found
        if isinstance(node, (AnyOf, OneOf)):
            known = [p for p in parts if p is not None]
            return frozenset().union(*known) if len(known) == len(parts) else None
        return frozenset() if node == Constant(False) else None

    def _banned(self, number: int) -> Values:
        node = self._table[number]
        inner = self._table[node.item] if isinstance(node, Negation) else None
        return _values_of(inner) if isinstance(inner, Scalars) else frozenset()


def _values_of(node: Scalars) -> Values:
    found: list[tuple[str, object]] = [("null", None)] if node.null else []
    found += [("boolean", x) for x in node.booleans]
    found += [("number", x) for x in node.numbers]
    return frozenset(found + [("string", x) for x in node.strings])


def _common(one: Values | None, other: Values | None) -> Values | None:
    """The values in both sets; None stands for all values."""
    if one is None or other is None:
        return other if one is None else one
    return one & other
