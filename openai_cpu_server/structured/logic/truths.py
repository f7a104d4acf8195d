"""Plain truths about nodes. Without them, `oneOf` of many kinds of objects, and many `if`s on one
property, would be unfolded in every combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from openai_cpu_server.structured.scalars.numbers import Bound
from openai_cpu_server.structured.schema.nodes import (
    FALSE,
    KIND_OF,
    TRUE,
    AllOf,
    AnyOf,
    Constant,
    Contains,
    Count,
    Format,
    Integer,
    Items,
    JsonKind,
    LeftOut,
    Length,
    Maximum,
    Minimum,
    MultipleOf,
    Negation,
    Node,
    NodeTable,
    OneOf,
    Pattern,
    Properties,
    PropertyCount,
    PropertyNames,
    Reference,
    Required,
    Scalars,
    SomeProperty,
    Types,
    Unevaluated,
)

K = TypeVar("K")
V = TypeVar("V")


def settled(
    start: K,
    known: dict[K, V],
    parts: Callable[[K], Sequence[K]],
    found: Callable[[K, list[V]], V],
    meanwhile: V,
) -> V:
    """Return the value that `found` computes from the values of the parts, without recursion. A key that
    depends on itself counts as `meanwhile`."""
    stack = [] if start in known else [_opened(start, known, parts, meanwhile)]
    while stack:
        key, needed = stack[-1]
        missing = next((part for part in needed if part not in known), None)
        if missing is not None:
            stack.append(_opened(missing, known, parts, meanwhile))
        else:
            known[key] = found(key, [known[part] for part in needed])
            stack.pop()
    return known[start]


def _opened(
    key: K, known: dict[K, V], parts: Callable[[K], Sequence[K]], meanwhile: V
) -> tuple[K, Sequence[K]]:
    known[key] = meanwhile
    return key, parts(key)


Signed = tuple[int, bool]


class PlainTruths:
    def __init__(self, table: NodeTable, look_up: Callable[[Reference], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._known: dict[JsonKind, dict[Signed, bool | None]] = {kind: {} for kind in JsonKind}

    def of(self, signed: Signed, kind: JsonKind) -> bool | None:
        """True if all values of the type fit, False if none does, None if it depends."""
        return settled(signed, self._known[kind], self._parts, partial(self._found, kind), None)

    def _parts(self, signed: Signed) -> list[Signed]:
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, Negation):
            return [(node.item, not is_true)]
        if isinstance(node, Reference):
            return [(self._look_up(node), is_true)]
        return [(x, is_true) for x in node.items] if isinstance(node, (AllOf, AnyOf)) else []

    def _found(self, kind: JsonKind, signed: Signed, truths: list[bool | None]) -> bool | None:
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, Constant):
            return node.value == is_true
        if isinstance(node, (Negation, Reference)):
            return truths[0]
        if isinstance(node, (AllOf, AnyOf)):
            return _of_parts(truths, decisive=isinstance(node, AnyOf) == is_true)
        if isinstance(node, Unevaluated):
            return None if node.kind is kind else is_true
        return None if isinstance(node, OneOf) else self.of_atom(node, is_true, kind)

    def of_atom(self, node: Node, is_true: bool, kind: JsonKind) -> bool | None:
        if isinstance(node, Types):
            if kind is JsonKind.NUMBER and "integer" in node.names and "number" not in node.names:
                return None
            return (kind.value in node.names) == is_true
        if isinstance(node, Scalars):
            return _of_scalars(node, is_true, kind)
        if isinstance(node, LeftOut):
            return None if node.kind in (kind, None) else is_true
        return None if KIND_OF[type(node)] is kind else is_true


def _of_parts(truths: list[bool | None], *, decisive: bool) -> bool | None:
    if decisive in truths:
        return decisive
    return (not decisive) if all(t is (not decisive) for t in truths) else None


def _of_scalars(node: Scalars, is_true: bool, kind: JsonKind) -> bool | None:
    listed: dict[JsonKind, bool] = {
        JsonKind.NULL: node.null,
        JsonKind.BOOLEAN: bool(node.booleans),
        JsonKind.NUMBER: bool(node.numbers),
        JsonKind.STRING: bool(node.strings),
    }
    if kind is JsonKind.NULL or not listed.get(kind, False):
        return listed.get(kind, False) == is_true
    return None


STAYS_NEGATED = (Pattern, Format, Integer, MultipleOf, Scalars)
"""Complemented as languages instead."""


def complement(node: Node, table: NodeTable) -> int | None:
    """Return None if no grammar can express it."""
    if isinstance(node, (Minimum, Maximum)):
        other = Maximum if isinstance(node, Minimum) else Minimum
        return table.add(other(Bound(node.bound.value, not node.bound.is_open)))
    if isinstance(node, (Length, Count, PropertyCount, Contains)):
        return _outside(node, table)
    if isinstance(node, Required):
        return table.any(*(table.add(Properties(((n, FALSE),), (), TRUE)) for n in node.names))
    if isinstance(node, Items):
        return _some_item(node, table)
    if isinstance(node, Properties):
        return _some_property(node, table)
    if isinstance(node, SomeProperty):
        return _no_property(node, table)
    if isinstance(node, PropertyNames):
        return _some_name(node, table)
    return None


def none_of_all(items: tuple[int, ...], table: NodeTable) -> list[tuple[int, bool]]:
    """Return signed nodes, one of which holds if not all `items` do. For a required property "absent" and
    "present, but wrong" become one alternative, "wrong if present", because otherwise every negation would
    double the alternatives."""
    described = next((x for x in items if isinstance(table[x], Properties)), None)
    required = next((x for x in items if isinstance(table[x], Required)), None)
    if described is None or required is None:
        return [(x, False) for x in items]
    shape, names = table[described], table[required]
    assert isinstance(shape, Properties)
    assert isinstance(names, Required)
    both = {n: v for n, v in shape.named if n in names.names and v != TRUE}
    left = Properties(
        tuple((n, TRUE if n in both else v) for n, v in shape.named), shape.patterns, shape.rest
    )
    absent = tuple(n for n in names.names if n not in both)
    objects = table.add(Types(frozenset({"object"})))
    wrong = [table.add(Properties(((n, table.negate(v)),), (), TRUE)) for n, v in both.items()]
    others = [(x, False) for x in items if x not in (described, required)]
    rest = [(table.add(left, *table.place(described)), False)]
    rest += [(table.add(Required(absent), *table.place(required)), False)] if absent else []
    return [*others, *rest, *((table.all(objects, x), True) for x in wrong)]


def _outside(node: Length | Count | PropertyCount | Contains, table: NodeTable) -> int:
    below = table.add(replace(node, low=0, high=node.low - 1)) if node.low else FALSE
    above = FALSE if node.high is None else table.add(replace(node, low=node.high + 1, high=None))
    return table.any(below, above)


def _some_item(node: Items, table: NodeTable) -> int | None:
    options = []
    for i, item in enumerate(node.prefix):
        wrong = table.add(Items((TRUE,) * i + (table.negate(item),), TRUE))
        options.append(table.all(table.add(Count(i + 1, None)), wrong))
    if node.rest == FALSE:
        options.append(table.add(Count(len(node.prefix) + 1, None)))
    elif node.rest != TRUE:
        if node.prefix:
            return None
        options.append(table.add(Contains(table.negate(node.rest), 1, None)))
    return table.any(*options)


def _some_property(node: Properties, table: NodeTable) -> int:
    options = []
    for name, value in node.named:
        wrong = table.add(Properties(((name, table.negate(value)),), (), TRUE))
        options.append(FALSE if value == TRUE else table.all(table.add(Required((name,))), wrong))
    for pattern, value in node.patterns:
        if value != TRUE:
            options.append(table.add(SomeProperty(pattern, ((), ()), table.negate(value))))
    if node.rest != TRUE:
        beside = (tuple(n for n, _ in node.named), tuple(p for p, _ in node.patterns))
        options.append(table.add(SomeProperty(None, beside, table.negate(node.rest))))
    return table.any(*options)


def _no_property(node: SomeProperty, table: NodeTable) -> int:
    wrong = table.negate(node.value)
    if node.pattern is not None:
        return table.add(Properties((), ((node.pattern, wrong),), TRUE))
    names, patterns = node.beside
    return table.add(Properties(tuple((n, TRUE) for n in names), tuple((p, TRUE) for p in patterns), wrong))


def _some_name(node: PropertyNames, table: NodeTable) -> int | None:
    inner = table[node.name]
    if node.name == FALSE:
        return table.add(PropertyCount(1, None))
    if isinstance(inner, Pattern):
        return table.add(SomeProperty(None, ((), (inner.pattern,)), TRUE))
    if isinstance(inner, Negation) and isinstance(pattern := table[inner.item], Pattern):
        return table.add(SomeProperty(pattern.pattern, ((), ()), TRUE))
    return None


Values = frozenset[tuple[str, object]]
"""Scalars with the names of their types, because 1 == True."""


class PropertyMark(msgspec.Struct, frozen=True):
    name: str
    listed: Values | None
    """Allowed values, or None for any."""
    unlisted: Values


class MarkedObject(msgspec.Struct):
    _required: set[str] = msgspec.field(default_factory=set)
    _marks: dict[str, PropertyMark] = msgspec.field(default_factory=dict)

    def copy(self) -> MarkedObject:
        return MarkedObject(set(self._required), dict(self._marks))

    def require(self, names: tuple[str, ...]) -> bool:
        """False if one of them has no value left."""
        self._required.update(names)
        return all(self._is_possible(n) for n in names)

    def add(self, mark: PropertyMark) -> bool:
        """False if the property is required and has no value left."""
        known = self._marks.get(mark.name)
        if known is not None:
            listed = _common(known.listed, mark.listed)
            mark = PropertyMark(mark.name, listed, known.unlisted | mark.unlisted)
        self._marks[mark.name] = mark
        return self._is_possible(mark.name)

    def must_have(self, names: tuple[str, ...]) -> bool:
        return self._required.issuperset(names)

    def listed(self, name: str) -> Values | None:
        mark = self._marks.get(name)
        return None if mark is None or mark.listed is None else mark.listed - mark.unlisted

    def _is_possible(self, name: str) -> bool:
        return name not in self._required or self.listed(name) != frozenset()


class MarkReader:
    def __init__(self, table: NodeTable, look_up: Callable[[Reference], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._listed: dict[int, Values | None] = {}
        self._required: dict[int, dict[str, Values]] = {}
        self.sent_fields = cache(self._said_by)

    def _said_by(self, node: Properties) -> tuple[PropertyMark, ...]:
        marks = [PropertyMark(name, self._values(v), self._banned(v)) for name, v in node.named]
        return tuple(m for m in marks if m.listed is not None or m.unlisted)

    def tell_apart(self, one: int, other: int) -> bool:
        """Return True only if surely no object fits both nodes."""
        ours, theirs = self._of(one), self._of(other)
        return any(name in theirs and not values & theirs[name] for name, values in ours.items())

    def imply(self, known: MarkedObject, number: int) -> bool:
        """Return True only if surely every object with these marks fits."""
        node = self._table[number]
        if isinstance(node, Required):
            return known.must_have(node.names)
        if isinstance(node, AllOf):
            return all(self.imply(known, x) for x in node.items)
        if isinstance(node, Properties) and not node.patterns and node.rest == TRUE:
            return all(self._all_fit(known.listed(name), value) for name, value in node.named)
        return False

    def _all_fit(self, values: Values | None, number: int) -> bool:
        node = self._table[number]
        if number == TRUE or values is None:
            return number == TRUE
        if isinstance(node, Negation):
            return isinstance(self._table[node.item], Scalars) and not values & self._banned(number)
        return isinstance(node, Scalars) and values <= _values_of(node)

    def _of(self, number: int) -> dict[str, Values]:
        """Values that a property has in every object that fits."""
        return settled(number, self._required, self._in_place, self._found, {})

    def _in_place(self, number: int) -> Sequence[int]:
        node = self._table[number]
        if isinstance(node, Reference):
            return (self._look_up(node),)
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
        marks = [m for part in parts if isinstance(part, Properties) for m in self.sent_fields(part)]
        found = {m.name: m.listed for m in marks if m.name in names and m.listed is not None}
        for item in items:
            for name, values in item.items():
                found[name] = found.get(name, values) & values
        return found

    def _values(self, number: int) -> Values | None:
        """Only values that fit, or None if unknown."""
        return settled(number, self._listed, self._in_place, self._listed_by, None)

    def _listed_by(self, number: int, parts: list[Values | None]) -> Values | None:
        node = self._table[number]
        if isinstance(node, Scalars):
            return _values_of(node)
        if isinstance(node, Reference):
            return parts[0]
        if isinstance(node, AllOf):
            return reduce(_common, parts, None)
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
    if one is None or other is None:
        return other if one is None else one
    return one & other
