"""Finds what schemas evaluate, by their own keywords and by the schemas that they apply in place."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.structured.errors import InvalidPattern, InvalidSchema, UnsupportedSchema
from openai_cpu_server.structured.options import Budget
from openai_cpu_server.structured.scalars.regex import search_language
from openai_cpu_server.structured.schema.drafts import Draft
from openai_cpu_server.structured.schema.evaluated import (
    EVERYTHING,
    Combiner,
    Evaluated,
    Option,
    Way,
    pruned,
)
from openai_cpu_server.structured.schema.json_types import Json
from openai_cpu_server.structured.schema.nodes import FALSE, Kind, Required, Table
from openai_cpu_server.structured.schema.references import References

Schema = dict[str, Json]
KEYWORDS = {Kind.OBJECT: "unevaluatedProperties", Kind.ARRAY: "unevaluatedItems"}
_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "$dynamicRef", "$recursiveRef"})
_BESIDE = {Kind.OBJECT: _IN_PLACE | {"dependentSchemas"}, Kind.ARRAY: _IN_PLACE | {"contains"}}


def looks_beside(schema: Schema, kind: Kind) -> bool:
    """Whether the schema's `unevaluated...` depends on keywords other
    than `properties`, `items` and their like."""
    asks = schema.get(KEYWORDS[kind], True) is not True
    return asks and not _is_closed(schema, kind) and not _BESIDE[kind].isdisjoint(schema)


def _is_closed(schema: Schema, kind: Kind) -> bool:
    """Whether `additionalProperties` (`items`, `additionalItems`) evaluates everything else."""
    if kind is Kind.OBJECT:
        return "additionalProperties" in schema
    return ("additionalItems" if isinstance(schema.get("items"), list) else "items") in schema


class Evaluation:
    """Finds what schemas evaluate of values of one type.

    `at` gives the node of the schema at a pointer; `may_meet` tells if a value of a type may fit two nodes.
    """

    def __init__(
        self,
        kind: Kind,
        table: Table,
        at: Callable[[str], int],
        may_meet: Callable[[int, int, Kind], bool],
        references: References,
        draft: Draft,
        budget: Budget,
    ) -> None:
        self._kind = kind
        self._table = table
        self._at = at
        self._combiner = Combiner(lambda one, other: may_meet(one, other, kind), budget)
        self._references = references
        self._draft = draft
        self._budget = budget
        self._known: dict[str, list[Way]] = {}
        self._open: set[str] = set()
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> dict[str, Callable[[Schema, str], list[Way]]]:
        """The handlers of the keywords that evaluate.
        `not` never does, nor do keywords that the draft does not know."""
        objects = {**dict.fromkeys(("properties", "patternProperties"), self._properties)}
        objects["dependentSchemas"] = self._dependent
        arrays = {**dict.fromkeys(("items", "prefixItems"), self._items)}
        if self._draft is not Draft.D2019:
            arrays["contains"] = self._contains
        return {
            **(objects if self._kind is Kind.OBJECT else arrays),
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "if": self._if,
            "$ref": self._ref,
            ("$recursiveRef" if self._draft is Draft.D2019 else "$dynamicRef"): self._dynamic_ref,
        }

    def beside(self, pointer: str) -> list[Way]:
        """What the schema at a pointer evaluates without its own `unevaluated...`. Raises TooManyWays."""
        self._at(pointer)
        schema = self._references.value(pointer)
        assert isinstance(schema, dict)
        return self._in(schema, pointer)

    def _ways(self, pointer: str) -> list[Way]:
        if pointer not in self._known:
            if pointer in self._open:
                raise InvalidSchema(pointer, "a schema must not contain itself in place")
            self._open.add(pointer)
            self._budget.check("depth", len(self._open))
            try:
                self._known[pointer] = self._found(pointer)
            finally:
                self._open.remove(pointer)
        return self._known[pointer]

    def _found(self, pointer: str) -> list[Way]:
        schema = self._references.value(pointer)
        if self._at(pointer) == FALSE:
            return []
        if not isinstance(schema, dict):
            return [Way()]
        if self._draft is Draft.OLD and "$ref" in schema:
            return self._ref(schema, pointer)
        if KEYWORDS[self._kind] in schema or _is_closed(schema, self._kind):
            return [Way(seen=EVERYTHING)]
        return self._in(schema, pointer)

    def _in(self, schema: Schema, path: str) -> list[Way]:
        self._budget.spend("unfolded")
        ways = [Way()]
        for handler in dict.fromkeys(self._handlers[k] for k in schema if k in self._handlers):
            ways = self._combiner.both(ways, handler(schema, path))
        self._budget.spend("unfolded", len(ways) - 1)
        return ways

    # Properties and items

    def _properties(self, schema: Schema, path: str) -> list[Way]:
        names, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        assert isinstance(names, dict)
        assert isinstance(patterns, dict)
        is_known = all(self._is_regular(p) for p in patterns)
        return [Way(seen=Evaluated(names=tuple(names), patterns=tuple(patterns)) if is_known else EVERYTHING)]

    def _is_regular(self, pattern: str) -> bool:
        """Whether a pattern is regular. Others were refused before this, or are left out on request."""
        try:
            search_language(pattern, self._budget.limits)
        except InvalidPattern:
            return False
        return True

    def _dependent(self, schema: Schema, path: str) -> list[Way]:
        given = schema["dependentSchemas"]
        assert isinstance(given, dict)
        ways = [Way()]
        for name in given:
            there = self._table.add(Required((name,)), path, "dependentSchemas")
            option = Option(there, self._ways(f"{path}/dependentSchemas/{_escape(name)}"))
            ways = self._combiner.both(ways, [Way(), *option.guarded])
        return ways

    def _items(self, schema: Schema, path: str) -> list[Way]:
        items = schema.get("items")
        if not isinstance(items, list) and self._draft is not Draft.D2019:
            items = schema.get("prefixItems")
        return [Way(seen=Evaluated(prefix=len(items) if isinstance(items, list) else 0))]

    def _contains(self, schema: Schema, path: str) -> list[Way]:
        return [Way(seen=Evaluated(matching=(self._at(f"{path}/contains"),)))]

    # Schemas in place

    def _option(self, path: str) -> Option:
        return Option(self._at(path), self._ways(path))

    def _options(self, schema: Schema, keyword: str, path: str) -> list[Option]:
        given = schema[keyword]
        assert isinstance(given, list)
        return [self._option(f"{path}/{keyword}/{i}") for i in range(len(given))]

    def _all_of(self, schema: Schema, path: str) -> list[Way]:
        ways = [Way()]
        for option in self._options(schema, "allOf", path):
            ways = self._combiner.both(ways, option.ways)
        return ways

    def _any_of(self, schema: Schema, path: str) -> list[Way]:
        return self._combiner.some_of(self._options(schema, "anyOf", path))

    def _one_of(self, schema: Schema, path: str) -> list[Way]:
        return pruned([way for option in self._options(schema, "oneOf", path) for way in option.guarded])

    def _if(self, schema: Schema, path: str) -> list[Way]:
        test = self._option(f"{path}/if")
        then = self._ways(f"{path}/then") if "then" in schema else [Way()]
        otherwise = self._ways(f"{path}/else") if "else" in schema else [Way()]
        passed = Option(test.number, self._combiner.both(test.ways, then))
        failed = Option(self._table.negate(test.number), otherwise)
        return pruned([*passed.guarded, *failed.guarded])

    # References

    def _ref(self, schema: Schema, path: str) -> list[Way]:
        return self._ways(self._references.find(_address(schema, "$ref"), path))

    def _dynamic_ref(self, schema: Schema, path: str) -> list[Way]:
        """The ways of the reference's target.
        A target that is missing was refused before this, or is left out on request."""
        keyword = "$recursiveRef" if self._draft is Draft.D2019 else "$dynamicRef"
        try:
            pointer = self._references.find_dynamic(_address(schema, keyword), path)
        except UnsupportedSchema:
            pointer = None
        return [Way(seen=EVERYTHING)] if pointer is None else self._ways(pointer)


def _address(schema: Schema, keyword: str) -> str:
    address = schema[keyword]
    assert isinstance(address, str)
    return address


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
