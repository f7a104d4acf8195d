"""Normal form of schemas: constraints on one type of value each, and ways to combine them.

As in JSON Schema, a constraint allows all values of other types.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Union

import msgspec
from msgspec.structs import replace

from openai_cpu_server.structured.scalars.numbers import Bound


class JsonKind(enum.Enum):
    NULL = "null"
    BOOLEAN = "boolean"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"

    __hash__ = object.__hash__  # an enum's own is written in Python, and kinds are keys everywhere


class Constant(msgspec.Struct, frozen=True):
    value: bool


class Types(msgspec.Struct, frozen=True):
    """`integer` may stand beside the types of `JsonKind`."""

    names: frozenset[str]


class Scalars(msgspec.Struct, frozen=True):
    null: bool
    booleans: frozenset[bool]
    numbers: tuple[Decimal, ...]
    strings: tuple[str, ...]


class Integer(msgspec.Struct, frozen=True): ...


class Limit(msgspec.Struct, frozen=True):
    bound: Bound
    is_upper: bool


class MultipleOf(msgspec.Struct, frozen=True):
    step: Decimal


class Size(msgspec.Struct, frozen=True):
    """Number of characters, items or properties."""

    kind: JsonKind
    low: int
    high: int | None


class Pattern(msgspec.Struct, frozen=True):
    pattern: str


class Format(msgspec.Struct, frozen=True):
    name: str


class Items(msgspec.Struct, frozen=True):
    prefix: tuple[int, ...]
    rest: int


class Contains(msgspec.Struct, frozen=True):
    item: int
    low: int
    high: int | None


class Unique(msgspec.Struct, frozen=True): ...


class Properties(msgspec.Struct, frozen=True):
    named: tuple[tuple[str, int], ...]
    patterns: tuple[tuple[str, int], ...]
    rest: int
    writes_rest: bool | None = None
    """False: names are declared and others not mentioned, so that none are written. True: others are allowed
    explicitly."""


class Required(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


class PropertyNames(msgspec.Struct, frozen=True):
    name: int


class SomeProperty(msgspec.Struct, frozen=True):
    """Some property fits `value`. Its name matches `pattern`, or is not in `beside` if that is None."""

    pattern: str | None
    beside: tuple[tuple[str, ...], tuple[str, ...]]
    value: int


class LeftOut(msgspec.Struct, frozen=True):
    """Keyword that is not enforced, so its truth is unknown. `kind` None concerns all types."""

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


class Unevaluated(msgspec.Struct, frozen=True):
    pointer: str
    kind: JsonKind
    scope: tuple[str, ...] = ()


Atom = Union[
    Scalars,
    Integer,
    Limit,
    MultipleOf,
    Size,
    Pattern,
    Format,
    Items,
    Contains,
    Unique,
    Properties,
    Required,
    PropertyNames,
    SomeProperty,
    LeftOut,
]
Node = Union[Constant, Types, Atom, AllOf, AnyOf, OneOf, Negation, Reference, Unevaluated]

KIND_OF: dict[type[object], JsonKind] = {
    **dict.fromkeys((Integer, Limit, MultipleOf), JsonKind.NUMBER),
    **dict.fromkeys((Pattern, Format), JsonKind.STRING),
    **dict.fromkeys((Items, Contains, Unique), JsonKind.ARRAY),
    **dict.fromkeys((Properties, Required, PropertyNames, SomeProperty), JsonKind.OBJECT),
}
"""`Scalars` concerns all types; `Size` and `LeftOut` name their own."""

TRUE, FALSE = 0, 1


class NodeTable:
    """`is_precise`: equal nodes of different places have different numbers."""

    def __init__(self, *, is_precise: bool = False) -> None:
        self.is_precise = is_precise
        self._nodes: list[Node] = []
        self._numbers: dict[tuple[Node, tuple[str, str] | None], int] = {}
        self._equals: dict[Node, int] = {}
        self._meanings: list[int] = []
        self._places: dict[int, tuple[str, str]] = {}
        self.joined: dict[tuple[str, str], dict[tuple[str, str], None]] = {}
        self._default_place: tuple[str, str] | None = None
        assert (self.add(Constant(True)), self.add(Constant(False))) == (TRUE, FALSE)

    def __getitem__(self, number: int) -> Node:
        return self._nodes[number]

    def add(self, node: Node, path: str = "", keyword: str = "") -> int:
        place = (path, keyword) if keyword else self._default_place or self._place_of_parts(node)
        key = (node, place if self.is_precise else None)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(node)
            self._meanings.append(self._find_meaning(node, number) if self.is_precise else number)
        if place is not None:
            self._places.setdefault(number, place)
        return number

    def meaning(self, number: int) -> int:
        return self._meanings[number]

    def _find_meaning(self, node: Node, number: int) -> int:
        if isinstance(node, (AllOf, AnyOf)):
            parts = tuple(dict.fromkeys(map(self.meaning, node.items)))
            return parts[0] if len(parts) == 1 else self._equals.setdefault(type(node)(parts), number)
        return self._equals.setdefault(_with_parts(node, self.meaning), number)

    def _place_of_parts(self, node: Node) -> tuple[str, str] | None:
        parts = node.items if isinstance(node, (AllOf, AnyOf)) else ()
        parts = (node.item,) if isinstance(node, Negation) else parts
        return next((self._places[x] for x in parts if x in self._places), None)

    def join_places(self, number: int, equal: int) -> None:
        """Name the places of an equal node, and of its parts, where those of a node are named."""
        stack = [(number, equal)]
        while stack:
            one, other = stack.pop()
            if one != other:
                self.joined.setdefault(self.place(one), {})[self.place(other)] = None
                stack += zip(_parts(self[one]), _parts(self[other]), strict=False)

    def place(self, number: int) -> tuple[str, str]:
        return self._places.get(number, ("", "schema"))

    @contextmanager
    def standing_for(self, number: int) -> Iterator[None]:
        """Give the place of this node to nodes that are added in the block without a place."""
        before, self._default_place = self._default_place, self.place(number)
        try:
            yield
        finally:
            self._default_place = before

    def left_out(self, kind: JsonKind | None, path: str, keyword: str) -> int:
        return self.add(LeftOut(kind, path, keyword), path, keyword)

    def all(self, *items: int, path: str = "", keyword: str = "") -> int:
        parts = tuple(dict.fromkeys(x for x in items if x != TRUE))
        if FALSE in parts:
            return FALSE
        if not parts:
            return TRUE
        return parts[0] if len(parts) == 1 else self.add(AllOf(parts), path, keyword)

    def any(self, *items: int) -> int:
        parts = tuple(dict.fromkeys(x for x in items if x != FALSE))
        if TRUE in parts:
            return TRUE
        if not parts:
            return FALSE
        return parts[0] if len(parts) == 1 else self.add(AnyOf(parts))

    def negate(self, item: int, path: str = "", keyword: str = "") -> int:
        node = self[item]
        if isinstance(node, Negation):
            return node.item
        if isinstance(node, Constant):
            return FALSE if node.value else TRUE
        return self.add(Negation(item), path, keyword)


def _parts(node: Node) -> list[int]:
    found: list[int] = []

    def note(number: int) -> int:
        found.append(number)
        return number

    _with_parts(node, note)
    return found


def _with_parts(node: Node, of: Callable[[int], int]) -> Node:
    match node:
        case AllOf(items) | AnyOf(items) | OneOf(items):
            return type(node)(tuple(map(of, items)))
        case Negation(item):
            return Negation(of(item))
        case Contains(item):
            return replace(node, item=of(item))
        case Items(prefix, rest):
            return Items(tuple(map(of, prefix)), of(rest))
        case PropertyNames(name):
            return PropertyNames(of(name))
        case SomeProperty(_, _, value):
            return replace(node, value=of(value))
        case Properties(named, patterns, rest):
            pairs = [tuple((name, of(value)) for name, value in each) for each in (named, patterns)]
            return replace(node, named=pairs[0], patterns=pairs[1], rest=of(rest))
    return node
