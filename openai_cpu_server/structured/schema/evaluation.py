"""Parts of an object or array that schemas evaluate: one way for each choice of passing alternatives.

A way need not name failing alternatives: it just sees less, and leaves more to constrain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import msgspec

from openai_cpu_server.structured.options import (
    Budget,
    InvalidPattern,
    InvalidSchema,
    UnenforcedReport,
    UnsupportedSchema,
)
from openai_cpu_server.structured.scalars.regex import search_language
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.document import Draft, ResourcePath, Schema, escaped
from openai_cpu_server.structured.schema.nodes import FALSE, TRUE, JsonKind, NodeTable
from openai_cpu_server.structured.schema.normalise import KEYWORDS, Normaliser, is_closed

_MOST_WAYS = 64
_MOST_TRIED = 256
_PAIRS_PER_STEP = 8


class TooManyWays(Exception): ...


class Unknown(Exception):
    """A keyword that is left out decides."""


@dataclass(frozen=True)
class Evaluated:
    everything: bool = False
    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    prefix: int = 0
    matching: tuple[int, ...] = ()

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

    def beyond(self, rest: int, kind: JsonKind, table: NodeTable, place: tuple[str, str]) -> int:
        if self.everything:
            return TRUE
        if kind is JsonKind.ARRAY:
            return table.add(nodes.Items((TRUE,) * self.prefix, table.any(*self.matching, rest)), *place)
        named = tuple((n, TRUE) for n in self.names)
        return table.add(nodes.Properties(named, tuple((p, TRUE) for p in self.patterns), rest), *place)


EVERYTHING = Evaluated(everything=True)
NOTHING_SEEN = Evaluated()


class Way(msgspec.Struct, frozen=True):
    """`seen`, perhaps more, is evaluated if all guards (nodes) hold."""

    guards: tuple[int, ...] = ()
    seen: Evaluated = NOTHING_SEEN

    def join(self, other: Way) -> Way:
        """One that sees nothing needs no guard."""
        seen = self.seen.union(other.seen)
        return Way() if seen == NOTHING_SEEN else Way(tuple(dict.fromkeys(self.guards + other.guards)), seen)

    def is_covered_by(self, other: Way) -> bool:
        return set(other.guards) <= set(self.guards) and self.seen.is_within(other.seen)


def guarded_ways(number: int, ways: list[Way]) -> list[Way]:
    if number == FALSE:
        return []
    guard = Way() if number == TRUE else Way((number,), NOTHING_SEEN)
    return list(dict.fromkeys(guard.join(way) for way in ways))


def pruned_ways(ways: list[Way]) -> list[Way]:
    """Drop ways that another way covers. Raises TooManyWays."""
    _check(len(ways))
    useful: list[Way] = []
    for way in ways:
        if not any(way.is_covered_by(k) for k in useful):
            useful = [*(k for k in useful if not k.is_covered_by(way)), way]
    if len(useful) > _MOST_WAYS:
        raise TooManyWays
    return useful


def _check(num_ways: int) -> None:
    if num_ways > _MOST_TRIED:
        raise TooManyWays


@dataclass(eq=False)
class Evaluation:
    """`reader` reads schemas in a dynamic scope, `of_scope` returns the evaluation of another scope."""

    kind: JsonKind
    reader: Normaliser
    may_meet: Callable[[int, int, JsonKind], bool]
    of_scope: Callable[[ResourcePath], Evaluation]
    draft: Draft
    budget: Budget

    def __post_init__(self) -> None:
        self.in_scope = cache(self._in_scope)
        self._open: set[str] = set()
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> dict[str, Callable[[Schema, str], list[Way]]]:
        """`not` never evaluates, nor do keywords that the draft does not know."""
        objects = {**dict.fromkeys(("properties", "patternProperties"), self._properties)}
        objects["dependentSchemas"] = self._dependent
        arrays = {**dict.fromkeys(("items", "prefixItems"), self._items)}
        if self.draft is not Draft.D2019:
            arrays["contains"] = lambda schema, path: [
                Way(seen=Evaluated(matching=(self.reader.at(f"{path}/contains"),)))
            ]
        dynamic = "$recursiveRef" if self.draft is Draft.D2019 else "$dynamicRef"
        return {
            **(objects if self.kind is JsonKind.OBJECT else arrays),
            "allOf": self._all_of,
            "anyOf": self._some_of,
            "oneOf": lambda schema, path: pruned_ways(
                [way for place in self._places(schema, "oneOf", path) for way in self._guarded(place)]
            ),
            "if": self._if,
            **{name: partial(self._reference, name) for name in ("$ref", dynamic)},
        }

    def beside(self, pointer: str) -> list[Way]:
        """Leave out the schema's own `unevaluated...`."""
        self.reader.at(pointer)
        schema = self.reader.references.value(pointer)
        assert isinstance(schema, dict)
        return self._in(schema, pointer)

    def ways(self, pointer: str) -> list[Way]:
        entered = self.reader.references.entered(self.reader.scope, pointer)
        evaluation = self if entered == self.reader.scope else self.of_scope(entered)
        return evaluation.in_scope(pointer)

    def _in_scope(self, pointer: str) -> list[Way]:
        if pointer in self._open:
            raise InvalidSchema(pointer, "a schema must not contain itself in place")
        self._open.add(pointer)
        self.budget.check("depth", len(self._open))
        try:
            return self._found(pointer)
        finally:
            self._open.remove(pointer)

    def _found(self, pointer: str) -> list[Way]:
        schema = self.reader.references.value(pointer)
        if self.reader.at(pointer) == FALSE:
            return []
        if not isinstance(schema, dict):
            return [Way()]
        if "$ref" in schema and self.reader.references.draft(schema) is Draft.OLD:
            return self._reference("$ref", schema, pointer)
        if KEYWORDS[self.kind] in schema or is_closed(schema, self.kind):
            return [Way(seen=EVERYTHING)]
        return self._in(schema, pointer)

    def _in(self, schema: Schema, path: str) -> list[Way]:
        self.budget.spend("unfolded")
        ways = [Way()]
        for handler in dict.fromkeys(self._handlers[k] for k in schema if k in self._handlers):
            ways = self._both(ways, handler(schema, path))
        self.budget.spend("unfolded", len(ways) - 1)
        return ways

    def _both(self, one: list[Way], other: list[Way]) -> list[Way]:
        self.budget.spend("unfolded", len(one) * len(other) // _PAIRS_PER_STEP)
        found: list[Way] = []
        for a, b in itertools.product(one, other):
            if all(self.may_meet(x, y, self.kind) for x in a.guards for y in b.guards):
                found.append(a.join(b))
            _check(len(found))
        return pruned_ways(found)

    def _some_of(self, schema: Schema, path: str) -> list[Way]:
        found: list[Way] = []
        is_nothing_seen = False
        for ways in [self._guarded(place) for place in self._places(schema, "anyOf", path)]:
            useful = [way for way in ways if way.seen != NOTHING_SEEN]
            is_nothing_seen |= len(useful) < len(ways)
            found += [*useful, *self._both(found, useful)]
            _check(len(found))
        return pruned_ways([Way(), *found] if is_nothing_seen else found)

    # Properties and items

    def _properties(self, schema: Schema, path: str) -> list[Way]:
        names, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        assert isinstance(names, dict)
        assert isinstance(patterns, dict)
        try:
            for pattern in patterns:
                search_language(pattern, self.budget.limits)
        except InvalidPattern:  # it was rejected before, or is left out on request
            raise Unknown from None
        return [Way(seen=Evaluated(names=tuple(names), patterns=tuple(patterns)))]

    def _dependent(self, schema: Schema, path: str) -> list[Way]:
        schemas = schema["dependentSchemas"]
        assert isinstance(schemas, dict)
        ways = [Way()]
        for name in schemas:
            there = self.reader.table.add(nodes.Required((name,)), path, "dependentSchemas")
            dependent = self.ways(f"{path}/dependentSchemas/{escaped(name)}")
            ways = self._both(ways, [Way(), *guarded_ways(there, dependent)])
        return ways

    def _items(self, schema: Schema, path: str) -> list[Way]:
        items = schema.get("items")
        if not isinstance(items, list) and self.draft is not Draft.D2019:
            items = schema.get("prefixItems")
        return [Way(seen=Evaluated(prefix=len(items) if isinstance(items, list) else 0))]

    # Schemas in place

    def _guarded(self, path: str) -> list[Way]:
        return guarded_ways(self.reader.at(path), self.ways(path))

    def _places(self, schema: Schema, keyword: str, path: str) -> list[str]:
        schemas = schema[keyword]
        assert isinstance(schemas, list)
        return [f"{path}/{keyword}/{i}" for i in range(len(schemas))]

    def _all_of(self, schema: Schema, path: str) -> list[Way]:
        ways = [Way()]
        for others in [self.ways(place) for place in self._places(schema, "allOf", path)]:
            ways = self._both(ways, others)
        return ways

    def _if(self, schema: Schema, path: str) -> list[Way]:
        test, tested = self.reader.at(f"{path}/if"), self.ways(f"{path}/if")
        then = self.ways(f"{path}/then") if "then" in schema else [Way()]
        otherwise = self.ways(f"{path}/else") if "else" in schema else [Way()]
        passed = guarded_ways(test, self._both(tested, then))
        return pruned_ways([*passed, *guarded_ways(self.reader.table.negate(test), otherwise)])

    # References

    def _reference(self, keyword: str, schema: Schema, path: str) -> list[Way]:
        """Dangling references were rejected before, or are left out on request."""
        address = schema[keyword]
        assert isinstance(address, str)
        try:
            target = self.reader.target(keyword, address, path)
        except UnsupportedSchema:
            raise Unknown from None
        if isinstance(target, bool):
            return [Way()] if target else []
        return self.of_scope(target.scope).ways(target.pointer)


def without_unevaluated(
    of_scope: Callable[[JsonKind, ResourcePath], Evaluation],
    report: UnenforcedReport,
    node: nodes.Unevaluated,
) -> int:
    evaluation = of_scope(node.kind, node.scope)
    table, keyword = evaluation.reader.table, KEYWORDS[node.kind]
    place = (node.pointer, keyword)
    rest = evaluation.reader.at(f"{node.pointer}/{keyword}")
    try:
        ways = evaluation.beside(node.pointer)
    except TooManyWays:
        report.refuse(*place, "depends on too many combinations of other schemas")
        return table.left_out(node.kind, *place)
    except Unknown:
        report.refuse(*place, "depends on what cannot be enforced beside it")
        return table.left_out(node.kind, *place)
    closed = [w.seen.beyond(rest, node.kind, table, place) for w in ways]
    return table.any(*(table.all(c, *w.guards) for c, w in zip(closed, ways, strict=True)))
