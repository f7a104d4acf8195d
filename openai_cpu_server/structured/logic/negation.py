"""Writes the complement of one constraint, among values of its type, in nodes again."""

from __future__ import annotations

from openai_cpu_server.structured.scalars.numbers import Bound
from openai_cpu_server.structured.schema.nodes import (
    FALSE,
    TRUE,
    Contains,
    Count,
    Format,
    Integer,
    Items,
    Length,
    Maximum,
    Minimum,
    MultipleOf,
    Negation,
    Node,
    Pattern,
    Properties,
    PropertyCount,
    PropertyNames,
    Required,
    Scalars,
    SomeProperty,
    Table,
    Types,
)

STAYS_NEGATED = (Pattern, Format, Integer, MultipleOf, Scalars)
"""Constraints on numbers and strings; their languages are complemented instead."""


def complement(node: Node, table: Table) -> int | None:
    """The number of the complement's node; None if no grammar can say it."""
    if isinstance(node, Minimum):
        return table.add(Maximum(Bound(node.bound.value, not node.bound.is_open)))
    if isinstance(node, Maximum):
        return table.add(Minimum(Bound(node.bound.value, not node.bound.is_open)))
    if isinstance(node, (Length, Count, PropertyCount)):
        return _outside(node, table)
    if isinstance(node, Required):
        return table.any(*(table.add(Properties(((n, FALSE),), (), TRUE)) for n in node.names))
    if isinstance(node, Items):
        return _some_item(node, table)
    if isinstance(node, Contains):
        return _other_number(node, table)
    if isinstance(node, Properties):
        return _some_property(node, table)
    if isinstance(node, SomeProperty):
        return _no_property(node, table)
    if isinstance(node, PropertyNames):
        return _some_name(node, table)
    return None


def none_of_all(items: tuple[int, ...], table: Table) -> list[tuple[int, bool]]:
    """Signed nodes, one of which holds if not all `items` do.

    If a property is both required and described, "absent" and "present, but wrong" become one alternative,
    "wrong if present": else every negation would double the alternatives once more.
    """
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


def _outside(node: Length | Count | PropertyCount, table: Table) -> int:
    below = table.add(type(node)(0, node.low - 1)) if node.low else FALSE
    above = FALSE if node.high is None else table.add(type(node)(node.high + 1, None))
    return table.any(below, above)


def _some_item(node: Items, table: Table) -> int | None:
    """An item at some place is wrong, or some item of the rest is; None if that cannot be said."""
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


def _other_number(node: Contains, table: Table) -> int:
    below = table.add(Contains(node.item, 0, node.low - 1)) if node.low else FALSE
    above = FALSE if node.high is None else table.add(Contains(node.item, node.high + 1, None))
    return table.any(below, above)


def _some_property(node: Properties, table: Table) -> int:
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


def _no_property(node: SomeProperty, table: Table) -> int:
    wrong = table.negate(node.value)
    if node.pattern is not None:
        return table.add(Properties((), ((node.pattern, wrong),), TRUE))
    names, patterns = node.beside
    return table.add(Properties(tuple((n, TRUE) for n in names), tuple((p, TRUE) for p in patterns), wrong))


def _some_name(node: PropertyNames, table: Table) -> int | None:
    """Some name breaks the constraint on names;
    None unless that is a single pattern, negated or not, or `false`."""
    inner = table[node.name]
    if node.name == FALSE:
        return table.add(PropertyCount(1, None))
    if isinstance(inner, Pattern):
        return table.add(SomeProperty(None, ((), (inner.pattern,)), TRUE))
    if isinstance(inner, Negation) and isinstance(pattern := table[inner.item], Pattern):
        return table.add(SomeProperty(pattern.pattern, ((), ()), TRUE))
    return None
