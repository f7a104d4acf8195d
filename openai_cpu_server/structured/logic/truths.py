"""Plain truths about nodes. Without them, `oneOf` of many objects, and many `if`s, would be unfolded in every
combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from openai_cpu_server.structured.scalars.numbers import Bound
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.nodes import FALSE, KIND_OF, TRUE, JsonKind, Node, NodeTable

K = TypeVar("K")
V = TypeVar("V")


def settled(
    start: K,
    values: dict[K, V],
    parts: Callable[[K], Sequence[K]],
    found: Callable[[K, list[V]], V],
    meanwhile: V,
) -> V:
    """Compute values from those of the parts, without recursion. A key that depends on itself counts as
    `meanwhile`."""
    stack = [] if start in values else [_opened(start, values, parts, meanwhile)]
    while stack:
        key, needed = stack[-1]
        missing = next((part for part in needed if part not in values), None)
        if missing is not None:
            stack.append(_opened(missing, values, parts, meanwhile))
        else:
            values[key] = found(key, [values[part] for part in needed])
            stack.pop()
    return values[start]


def _opened(
    key: K, values: dict[K, V], parts: Callable[[K], Sequence[K]], meanwhile: V
) -> tuple[K, Sequence[K]]:
    values[key] = meanwhile
    return key, parts(key)


Signed = tuple[int, bool]


class PlainTruths:
    def __init__(self, table: NodeTable, look_up: Callable[[nodes.Reference], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._truths: dict[JsonKind, dict[Signed, bool | None]] = {kind: {} for kind in JsonKind}

    def of(self, signed: Signed, kind: JsonKind) -> bool | None:
        """Return None if it depends on the value."""
        return settled(signed, self._truths[kind], self._parts, partial(self._found, kind), None)

    def _parts(self, signed: Signed) -> list[Signed]:
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, nodes.Negation):
            return [(node.item, not is_true)]
        if isinstance(node, nodes.Reference):
            return [(self._look_up(node), is_true)]
        return [(x, is_true) for x in node.items] if isinstance(node, (nodes.AllOf, nodes.AnyOf)) else []

    def _found(self, kind: JsonKind, signed: Signed, truths: list[bool | None]) -> bool | None:
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, nodes.Constant):
            return node.value == is_true
        if isinstance(node, (nodes.Negation, nodes.Reference)):
            return truths[0]
        if isinstance(node, (nodes.AllOf, nodes.AnyOf)):
            decisive = isinstance(node, nodes.AnyOf) == is_true
            if decisive in truths:
                return decisive
            return (not decisive) if all(t is (not decisive) for t in truths) else None
        if isinstance(node, nodes.Unevaluated):
            return None if node.kind is kind else is_true
        return None if isinstance(node, nodes.OneOf) else self.of_atom(node, is_true, kind)

    def of_atom(self, node: Node, is_true: bool, kind: JsonKind) -> bool | None:
        if isinstance(node, nodes.Types):
            if kind is JsonKind.NUMBER and "integer" in node.names and "number" not in node.names:
                return None
            return (kind.value in node.names) == is_true
        if isinstance(node, nodes.Scalars):
            listed: dict[JsonKind, bool] = {
                JsonKind.NULL: node.null,
                JsonKind.BOOLEAN: bool(node.booleans),
                JsonKind.NUMBER: bool(node.numbers),
                JsonKind.STRING: bool(node.strings),
            }
            if kind is JsonKind.NULL or not listed.get(kind, False):
                return listed.get(kind, False) == is_true
            return None
        if isinstance(node, nodes.LeftOut):
            return None if node.kind in (kind, None) else is_true
        concerned = node.kind if isinstance(node, nodes.Size) else KIND_OF[type(node)]
        return None if concerned is kind else is_true


STAYS_NEGATED = (nodes.Pattern, nodes.Format, nodes.Integer, nodes.MultipleOf, nodes.Scalars)
"""Complemented as languages instead."""


def complement(node: Node, table: NodeTable) -> int | None:
    if isinstance(node, nodes.Limit):
        return table.add(nodes.Limit(Bound(node.bound.value, not node.bound.is_open), not node.is_upper))
    if isinstance(node, (nodes.Size, nodes.Contains)):
        below = table.add(replace(node, low=0, high=node.low - 1)) if node.low else FALSE
        above = FALSE if node.high is None else table.add(replace(node, low=node.high + 1, high=None))
        return table.any(below, above)
    if isinstance(node, nodes.Required):
        return table.any(*(table.add(nodes.Properties(((n, FALSE),), (), TRUE)) for n in node.names))
    if isinstance(node, nodes.Items):
        return _some_item(node, table)
    if isinstance(node, nodes.Properties):
        return _some_property(node, table)
    if isinstance(node, nodes.SomeProperty):
        wrong = table.negate(node.value)
        if node.pattern is not None:
            return table.add(nodes.Properties((), ((node.pattern, wrong),), TRUE))
        names, patterns = node.beside
        return table.add(
            nodes.Properties(tuple((n, TRUE) for n in names), tuple((p, TRUE) for p in patterns), wrong)
        )
    if isinstance(node, nodes.PropertyNames):
        return _some_name(node, table)
    return None


def none_of_all(items: tuple[int, ...], table: NodeTable) -> list[tuple[int, bool]]:
    """Return signed nodes, one of which holds if not all `items` do.

    For a required property "absent" and "present, but wrong" are one alternative, because every negation
    would double them.
    """
    described = next((x for x in items if isinstance(table[x], nodes.Properties)), None)
    required = next((x for x in items if isinstance(table[x], nodes.Required)), None)
    if described is None or required is None:
        return [(x, False) for x in items]
    shape, names = table[described], table[required]
    assert isinstance(shape, nodes.Properties)
    assert isinstance(names, nodes.Required)
    both = {n: v for n, v in shape.named if n in names.names and v != TRUE}
    left = nodes.Properties(
        tuple((n, TRUE if n in both else v) for n, v in shape.named), shape.patterns, shape.rest
    )
    absent = tuple(n for n in names.names if n not in both)
    objects = table.add(nodes.Types(frozenset({"object"})))
    wrong = [table.add(nodes.Properties(((n, table.negate(v)),), (), TRUE)) for n, v in both.items()]
    others = [(x, False) for x in items if x not in (described, required)]
    rest = [(table.add(left, *table.place(described)), False)]
    rest += [(table.add(nodes.Required(absent), *table.place(required)), False)] if absent else []
    return [*others, *rest, *((table.all(objects, x), True) for x in wrong)]


def _some_item(node: nodes.Items, table: NodeTable) -> int | None:
    options = []
    for i, item in enumerate(node.prefix):
        wrong = table.add(nodes.Items((TRUE,) * i + (table.negate(item),), TRUE))
        options.append(table.all(table.add(nodes.Size(JsonKind.ARRAY, i + 1, None)), wrong))
    if node.rest == FALSE:
        options.append(table.add(nodes.Size(JsonKind.ARRAY, len(node.prefix) + 1, None)))
    elif node.rest != TRUE:
        if node.prefix:
            return None
        options.append(table.add(nodes.Contains(table.negate(node.rest), 1, None)))
    return table.any(*options)


def _some_property(node: nodes.Properties, table: NodeTable) -> int:
    options = []
    for name, value in node.named:
        wrong = table.add(nodes.Properties(((name, table.negate(value)),), (), TRUE))
        options.append(FALSE if value == TRUE else table.all(table.add(nodes.Required((name,))), wrong))
    for pattern, value in node.patterns:
        if value != TRUE:
            options.append(table.add(nodes.SomeProperty(pattern, ((), ()), table.negate(value))))
    if node.rest != TRUE:
        beside = (tuple(n for n, _ in node.named), tuple(p for p, _ in node.patterns))
        options.append(table.add(nodes.SomeProperty(None, beside, table.negate(node.rest))))
    return table.any(*options)


def _some_name(node: nodes.PropertyNames, table: NodeTable) -> int | None:
    inner = table[node.name]
    if node.name == FALSE:
        return table.add(nodes.Size(JsonKind.OBJECT, 1, None))
    if isinstance(inner, nodes.Pattern):
        return table.add(nodes.SomeProperty(None, ((), (inner.pattern,)), TRUE))
    if isinstance(inner, nodes.Negation) and isinstance(pattern := table[inner.item], nodes.Pattern):
        return table.add(nodes.SomeProperty(pattern.pattern, ((), ()), TRUE))
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
        self._required.update(names)
        return all(self._is_possible(n) for n in names)

    def add(self, mark: PropertyMark) -> bool:
        before = self._marks.get(mark.name)
        if before is not None:
            listed = _common(before.listed, mark.listed)
            mark = PropertyMark(mark.name, listed, before.unlisted | mark.unlisted)
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
    def __init__(self, table: NodeTable, look_up: Callable[[nodes.Reference], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._listed: dict[int, Values | None] = {}
        self._required: dict[int, dict[str, Values]] = {}
        self.marks_of = cache(self._marks_of)

    def _marks_of(self, node: nodes.Properties) -> tuple[PropertyMark, ...]:
        marks = []
        for name, value in node.named:
            listed = settled(value, self._listed, self._in_place, self._listed_by, None)
            marks.append(PropertyMark(name, listed, self._banned(value)))
        return tuple(m for m in marks if m.listed is not None or m.unlisted)

    def exclude_each_other(self, one: int, other: int) -> bool:
        ours, theirs = self._of(one), self._of(other)
        return any(name in theirs and not values & theirs[name] for name, values in ours.items())

    def imply(self, marked: MarkedObject, number: int) -> bool:
        node = self._table[number]
        if isinstance(node, nodes.Required):
            return marked.must_have(node.names)
        if isinstance(node, nodes.AllOf):
            return all(self.imply(marked, x) for x in node.items)
        if isinstance(node, nodes.Properties) and not node.patterns and node.rest == TRUE:
            return all(self._all_fit(marked.listed(name), value) for name, value in node.named)
        return False

    def _all_fit(self, values: Values | None, number: int) -> bool:
        node = self._table[number]
        if number == TRUE or values is None:
            return number == TRUE
        if isinstance(node, nodes.Negation):
            return isinstance(self._table[node.item], nodes.Scalars) and not values & self._banned(number)
        return isinstance(node, nodes.Scalars) and values <= _values_of(node)

    def _of(self, number: int) -> dict[str, Values]:
        return settled(number, self._required, self._in_place, self._found, {})

    def _in_place(self, number: int) -> Sequence[int]:
        node = self._table[number]
        if isinstance(node, nodes.Reference):
            return (self._look_up(node),)
        return node.items if isinstance(node, (nodes.AllOf, nodes.AnyOf, nodes.OneOf)) else ()

    def _found(self, number: int, parts: list[dict[str, Values]]) -> dict[str, Values]:
        node = self._table[number]
        if isinstance(node, nodes.Reference):
            return parts[0]
        if isinstance(node, (nodes.AnyOf, nodes.OneOf)):
            first, *others = parts
            shared = [n for n in first if all(n in o for o in others)]
            return {n: first[n].union(*(o[n] for o in others)) for n in shared}
        return self._of_all(node, parts) if isinstance(node, nodes.AllOf) else {}

    def _of_all(self, node: nodes.AllOf, items: list[dict[str, Values]]) -> dict[str, Values]:
        parts = [self._table[x] for x in node.items]
        names = {n for part in parts if isinstance(part, nodes.Required) for n in part.names}
        marks = [m for part in parts if isinstance(part, nodes.Properties) for m in self.marks_of(part)]
        found = {m.name: m.listed for m in marks if m.name in names and m.listed is not None}
        for item in items:
            for name, values in item.items():
                found[name] = found.get(name, values) & values
        return found

    def _listed_by(self, number: int, parts: list[Values | None]) -> Values | None:
        node = self._table[number]
        if isinstance(node, nodes.Scalars):
            return _values_of(node)
        if isinstance(node, nodes.Reference):
            return parts[0]
        if isinstance(node, nodes.AllOf):
            return reduce(_common, parts, None)
        if isinstance(node, (nodes.AnyOf, nodes.OneOf)):
            lists = [p for p in parts if p is not None]
            return frozenset().union(*lists) if len(lists) == len(parts) else None
        return frozenset() if node == nodes.Constant(False) else None

    def _banned(self, number: int) -> Values:
        node = self._table[number]
        inner = self._table[node.item] if isinstance(node, nodes.Negation) else None
        return _values_of(inner) if isinstance(inner, nodes.Scalars) else frozenset()


def _values_of(node: nodes.Scalars) -> Values:
    found: list[tuple[str, object]] = [("null", None)] if node.null else []
    found += [("boolean", x) for x in node.booleans]
    found += [("number", x) for x in node.numbers]
    return frozenset(found + [("string", x) for x in node.strings])


def _common(one: Values | None, other: Values | None) -> Values | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
