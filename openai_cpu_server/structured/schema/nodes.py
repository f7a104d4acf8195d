"""The normal form of schemas: small constraints on one type of value each, and ways to combine them.

Every node has a number in its `NodeTable`; equal nodes have equal numbers. A constraint says nothing about
values of other types than its own, as in JSON Schema.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Union

import msgspec

from openai_cpu_server.structured.scalars.numbers import Bound


class JsonKind(enum.Enum):
    """The types of JSON values."""

    NULL = "null"
    BOOLEAN = "boolean"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"


class Constant(msgspec.Struct, frozen=True):
    """True or False: all values fit, or none does."""

    value: bool


class Types(msgspec.Struct, frozen=True):
    """The value has one of these types; `integer` may stand beside those of Kind."""

    names: frozenset[str]


class Scalars(msgspec.Struct, frozen=True):
    """The value is one of these: null, booleans, numbers, strings."""

    null: bool
    booleans: frozenset[bool]
    numbers: tuple[Decimal, ...]
    strings: tuple[str, ...]


class Integer(msgspec.Struct, frozen=True):
    """The number has no fraction."""


class Minimum(msgspec.Struct, frozen=True):
    bound: Bound


class Maximum(msgspec.Struct, frozen=True):
    bound: Bound


class MultipleOf(msgspec.Struct, frozen=True):
    step: Decimal


class Length(msgspec.Struct, frozen=True):
    """The string has `low` to `high` characters."""

    low: int
    high: int | None


class Pattern(msgspec.Struct, frozen=True):
    pattern: str


class Format(msgspec.Struct, frozen=True):
    name: str


class Items(msgspec.Struct, frozen=True):
    prefix: tuple[int, ...]
    rest: int


class Count(msgspec.Struct, frozen=True):
    """The array has `low` to `high` items."""

    low: int
    high: int | None


class Contains(msgspec.Struct, frozen=True):
    item: int
    low: int
    high: int | None


class Unique(msgspec.Struct, frozen=True):
    """No two items of the array are equal."""


class Properties(msgspec.Struct, frozen=True):
    named: tuple[tuple[str, int], ...]
    patterns: tuple[tuple[str, int], ...]
    rest: int
    """The node for properties that are neither named nor match a pattern."""


class Required(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


class PropertyCount(msgspec.Struct, frozen=True):
    low: int
    high: int | None


class PropertyNames(msgspec.Struct, frozen=True):
    name: int


class SomeProperty(msgspec.Struct, frozen=True):
    """Some property fits `value`.
    Its name matches `pattern`, or (None) is none of those that `beside` knows."""

    pattern: str | None
    beside: tuple[tuple[str, ...], tuple[str, ...]]
    value: int


class LeftOut(msgspec.Struct, frozen=True):
    """A keyword that is not enforced: a value may fit it or not, and nobody knows. It says something of
    values of one type, or (None) of all."""

    kind: JsonKind | None
    path: str
    keyword: str


class AllOf(msgspec.Struct, frozen=True):
    items: tuple[int, ...]


class AnyOf(msgspec.Struct, frozen=True):
    items: tuple[int, ...]


class OneOf(msgspec.Struct, frozen=True):
    items: tuple[int, ...]


class Negation(msgspec.Struct, frozen=True):
    item: int


class Reference(msgspec.Struct, frozen=True):
    pointer: str
    scope: tuple[str, ...] = ()
    """The dynamic scope in which the schema there is to be read."""


class Unevaluated(msgspec.Struct, frozen=True):
    """The parts that the schema at `pointer` does not evaluate otherwise fit its `unevaluated...` keyword.

    The parts are properties of an object, or items of an array.
    """

    pointer: str
    kind: JsonKind
    scope: tuple[str, ...] = ()


Atom = Union[
    Scalars,
    Integer,
    Minimum,
    Maximum,
    MultipleOf,
    Length,
    Pattern,
    Format,
    Items,
    Count,
    Contains,
    Unique,
    Properties,
    Required,
    PropertyCount,
    PropertyNames,
    SomeProperty,
    LeftOut,
]
Node = Union[Constant, Types, Atom, AllOf, AnyOf, OneOf, Negation, Reference, Unevaluated]

KIND_OF: dict[type[object], JsonKind] = {
    **dict.fromkeys((Integer, Minimum, Maximum, MultipleOf), JsonKind.NUMBER),
    **dict.fromkeys((Length, Pattern, Format), JsonKind.STRING),
    **dict.fromkeys((Items, Count, Contains, Unique), JsonKind.ARRAY),
    **dict.fromkeys((Properties, Required, PropertyCount, PropertyNames, SomeProperty), JsonKind.OBJECT),
}
"""The type of value that a constraint is about. (`Scalars` is about all types, and `LeftOut` tells.)"""

TRUE, FALSE = 0, 1


class NodeTable:
    """Gives numbers to nodes, and remembers where in the schema each was met first."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._numbers: dict[Node, int] = {}
        self._places: dict[int, tuple[str, str]] = {}
        self._default_place: tuple[str, str] | None = None
        assert (self.add(Constant(True)), self.add(Constant(False))) == (TRUE, FALSE)

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def add(self, node: Node, path: str = "", keyword: str = "") -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self._nodes)
            self._nodes.append(node)
        place = (path, keyword) if keyword else self._default_place or self._place_of_parts(node)
        if place is not None:
            self._places.setdefault(number, place)
        return number

    def _place_of_parts(self, node: Node) -> tuple[str, str] | None:
        """The place of the first part that has one."""
        parts = node.items if isinstance(node, (AllOf, AnyOf)) else ()
        parts = (node.item,) if isinstance(node, Negation) else parts
        return next((self._places[x] for x in parts if x in self._places), None)

    def place(self, number: int) -> tuple[str, str]:
        """The (path, keyword) that an error about this node names."""
        return self._places.get(number, ("", "schema"))

    @contextmanager
    def standing_for(self, number: int) -> Iterator[None]:
        """What is added in the block without a place of its own has that of this node."""
        before, self._default_place = self._default_place, self.place(number)
        try:
            yield
        finally:
            self._default_place = before

    def left_out(self, kind: JsonKind | None, path: str, keyword: str) -> int:
        return self.add(LeftOut(kind, path, keyword), path, keyword)

    def all(self, *items: int, path: str = "", keyword: str = "") -> int:
        kept = tuple(dict.fromkeys(x for x in items if x != TRUE))
        if FALSE in kept:
            return FALSE
        if not kept:
            return TRUE
        return kept[0] if len(kept) == 1 else self.add(AllOf(kept), path, keyword)

    def any(self, *items: int) -> int:
        kept = tuple(dict.fromkeys(x for x in items if x != FALSE))
        if TRUE in kept:
            return TRUE
        if not kept:
            return FALSE
        return kept[0] if len(kept) == 1 else self.add(AnyOf(kept))

    def negate(self, item: int, path: str = "", keyword: str = "") -> int:
        node = self[item]
        if isinstance(node, Negation):
            return node.item
        if isinstance(node, Constant):
            return FALSE if node.value else TRUE
        return self.add(Negation(item), path, keyword)
