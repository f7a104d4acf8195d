"""JSON Schema, drafts 4 to 2020-12, as nodes. References are resolved when needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from functools import partial

from openai_cpu_server.structured.options import (
    Budget,
    InvalidPattern,
    InvalidSchema,
    UnenforcedReport,
    UnsupportedSchema,
)
from openai_cpu_server.structured.scalars.numbers import Bound
from openai_cpu_server.structured.scalars.regex import STRING_FORMATS, search_language
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.document import (
    Draft,
    Json,
    References,
    ResourcePath,
    Schema,
    draft_of,
    escaped,
    exact,
    is_finite,
)
from openai_cpu_server.structured.schema.nodes import FALSE, TRUE, JsonKind, NodeTable

_TYPE_NAMES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_PROPERTY_KEYWORDS = ("properties", "patternProperties", "additionalProperties", "unevaluatedProperties")
_ITEM_KEYWORDS = ("items", "prefixItems", "additionalItems", "unevaluatedItems")
_BOUNDS = {
    "minimum": (False, "exclusiveMinimum"),
    "maximum": (True, "exclusiveMaximum"),
    "exclusiveMinimum": (False, "exclusiveMinimum"),
    "exclusiveMaximum": (True, "exclusiveMaximum"),
}
"""True for an upper bound, and the keyword that excludes the bound itself."""
_DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


KEYWORDS = {JsonKind.OBJECT: "unevaluatedProperties", JsonKind.ARRAY: "unevaluatedItems"}
_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "if", "$dynamicRef", "$recursiveRef"})
_BESIDE = {JsonKind.OBJECT: _IN_PLACE | {"dependentSchemas"}, JsonKind.ARRAY: _IN_PLACE | {"contains"}}


def looks_beside(schema: Schema, kind: JsonKind) -> bool:
    """Return True if `unevaluated...` depends on more than `properties`, `items` and their like."""
    is_present = schema.get(KEYWORDS[kind], True) is not True
    return is_present and not is_closed(schema, kind) and not _BESIDE[kind].isdisjoint(schema)


def is_closed(schema: Schema, kind: JsonKind) -> bool:
    if kind is JsonKind.OBJECT:
        return "additionalProperties" in schema
    return ("additionalItems" if isinstance(schema.get("items"), list) else "items") in schema


class SchemaReaders:
    """Readers by dynamic scope; most documents have one."""

    def __init__(
        self,
        root: Json,
        budget: Budget,
        report: UnenforcedReport,
        *,
        closes_objects: bool,
        is_precise: bool = False,
    ) -> None:
        self.closes_objects = closes_objects
        self.table = NodeTable(is_precise=is_precise)
        self.budget = budget
        self.report = report
        self.draft = draft_of(root)
        self.references = References(root, budget, self.draft)
        if self.draft is Draft.THREE:
            report.refuse("", "$schema", "names draft 3, which is not supported")
        self.of = functools.cache(functools.partial(Normaliser, self))
        self.root = self.of(self.references.entered((), ""))

    def at(self, reference: nodes.Reference) -> int:
        return self.of(reference.scope).at(reference.pointer)


class Normaliser:
    def __init__(self, readers: SchemaReaders, scope: ResourcePath) -> None:
        self._readers = readers
        self.scope = scope
        self.table = readers.table
        self.references = readers.references
        self._budget = readers.budget
        self._report = readers.report
        self._by_pointer: dict[str, int] = {}
        self._handlers = self._all_handlers()

    def _all_handlers(self) -> dict[str, Callable[[Schema, str], int]]:
        """Keywords that belong together share a handler, which runs at the first of them."""
        return {
            "type": self._type,
            **{name: partial(self._bound, name) for name in _BOUNDS},
            "multipleOf": self._multiple_of,
            **self._counting("minLength", "maxLength", JsonKind.STRING),
            "pattern": lambda schema, path: self._pattern(
                schema["pattern"], path, "pattern", JsonKind.STRING
            ),
            "format": self._format,
            **self._counting("minItems", "maxItems", JsonKind.ARRAY),
            "uniqueItems": self._unique,
            **self._counting("minProperties", "maxProperties", JsonKind.OBJECT),
            "enum": self._enum,
            "const": lambda schema, path: self._values([schema["const"]], path, "const"),
            **dict.fromkeys(_PROPERTY_KEYWORDS, self._properties),
            "required": lambda schema, path: self._require(schema["required"], path, "required"),
            "propertyNames": self._property_names,
            **dict.fromkeys(_ITEM_KEYWORDS, self._items),
            "contains": self._contains,
            "allOf": lambda schema, path: self.table.all(*self._list(schema, "allOf", path)),
            "anyOf": lambda schema, path: self.table.any(*self._list(schema, "anyOf", path)),
            "oneOf": self._one_of,
            "not": lambda schema, path: self.table.negate(
                self.schema(schema["not"], f"{path}/not"), path, "not"
            ),
            "if": self._if,
            **dict.fromkeys(_DEPENDENCIES, self._dependencies),
            **{name: partial(self._reference, name) for name in ("$ref", "$recursiveRef", "$dynamicRef")},
        }

    def at(self, pointer: str) -> int:
        if pointer not in self._by_pointer:
            self._by_pointer[pointer] = self.schema(self.references.value(pointer), pointer)
        return self._by_pointer[pointer]

    def needed(self, pointer: str) -> list[str]:
        schema = self.references.value(pointer)
        if not isinstance(schema, dict):
            return []
        ways = next((k for k in ("anyOf", "oneOf") if k in schema), "allOf")
        lists = dict.fromkeys(("allOf", ways, "prefixItems", "items"))
        found = [f"{pointer}/{k}/{i}" for k in lists for i in range(len(_listed(schema.get(k))))]
        properties = schema.get("properties")
        named = properties if isinstance(properties, dict) else {}
        required = [x for x in _listed(schema.get("required")) if isinstance(x, str) and x in named]
        found += [f"{pointer}/properties/{escaped(x)}" for x in required]
        found += [f"{pointer}/{k}" for k in ("items", "contains") if isinstance(schema.get(k), dict)]
        node = self.table[self._reference("$ref", schema, pointer)] if "$ref" in schema else None
        return [*found, node.pointer] if isinstance(node, nodes.Reference) else found

    def schema(self, schema: Json, path: str) -> int:
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if not isinstance(schema, dict):
            raise InvalidSchema(path, "a schema must be an object, true or false")
        entered = self.references.entered(self.scope, path)
        if entered != self.scope:
            return self._readers.of(entered).schema(schema, path)
        with self._budget.looking_at(path):
            self._budget.spend("schemas")
            self._budget.check("depth", path.count("/") // 2)
            self._by_pointer[path] = found = self._of_keywords(schema, path)
        return found

    def _of_keywords(self, schema: Schema, path: str) -> int:
        if "$ref" in schema and self.references.draft(schema) is Draft.OLD:
            return self._reference("$ref", schema, path)
        # First, because their choices settle those of the keywords beside them.
        kinds = [k for k in KEYWORDS if looks_beside(schema, k)]
        parts = [self.table.add(nodes.Unevaluated(path, k, self.scope), path, KEYWORDS[k]) for k in kinds]
        done: set[object] = set()
        for keyword in schema:
            handler = self._handlers.get(keyword)
            if handler is not None and handler not in done:
                done.add(handler)
                parts.append(handler(schema, path))
        return self.table.all(*parts, path=path, keyword=next(iter(schema), ""))

    def _reference(self, keyword: str, schema: Schema, path: str) -> int:
        address = schema[keyword]
        if not isinstance(address, str):
            raise InvalidSchema(path, f"'{keyword}' must be a string")
        try:
            target = self.target(keyword, address, path)
        except UnsupportedSchema as error:
            self._report.refuse(path, keyword, error.reason)
            return self.table.left_out(None, path, keyword)
        if isinstance(target, bool):
            return TRUE if target else FALSE
        return self.table.add(target, path, keyword)

    def target(self, keyword: str, address: str, path: str) -> nodes.Reference | bool:
        if keyword == "$ref":
            found = self.references.find(address, path)
        else:
            found = self.references.find_dynamic(keyword, address, path, self.scope)
        return (
            found
            if isinstance(found, bool)
            else nodes.Reference(found, self.references.entered(self.scope, found))
        )

    # Values by themselves

    def _type(self, schema: Schema, path: str) -> int:
        value = schema["type"]
        names = value if isinstance(value, list) else [value]
        types = [x for x in names if isinstance(x, str) and x in _TYPE_NAMES]
        if len(types) != len(names) or not names:
            raise InvalidSchema(path, f"unknown 'type' {str(value)[:80]!r}")
        if schema.get("nullable") is True:
            types.append("null")
        return self.table.add(nodes.Types(frozenset(types)), path, "type")

    def _decimal(self, schema: Schema, keyword: str, path: str) -> Decimal:
        value = schema[keyword]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InvalidSchema(path, f"'{keyword}' must be a number")
        if not is_finite(value):
            raise InvalidSchema(path, f"'{keyword}' is not finite, or too long a number")
        return exact(value)

    def _bound(self, keyword: str, schema: Schema, path: str) -> int:
        """Draft 4's `exclusive...` is true or false, and belongs to the bound beside it."""
        is_upper, exclusive = _BOUNDS[keyword]
        if keyword == exclusive and isinstance(schema[keyword], bool):
            return TRUE
        is_open = keyword == exclusive or schema.get(exclusive) is True
        bound = Bound(self._decimal(schema, keyword, path), is_open)
        return self.table.add(nodes.Limit(bound, is_upper), path, keyword)

    def _multiple_of(self, schema: Schema, path: str) -> int:
        step = self._decimal(schema, "multipleOf", path)
        if step <= 0:
            raise InvalidSchema(path, "'multipleOf' must be greater than 0")
        if step == 1:
            return self.table.add(nodes.Integer(), path, "multipleOf")
        return self.table.add(nodes.MultipleOf(step), path, "multipleOf")

    def _counts(self, schema: Schema, low: str, high: str, path: str) -> tuple[int, int | None]:
        return self._natural(schema, low, path) or 0, self._natural(schema, high, path)

    def _natural(self, schema: Schema, keyword: str, path: str) -> int | None:
        if keyword not in schema:
            return None
        value = self._decimal(schema, keyword, path)
        if value < 0 or value != value.to_integral_value():
            raise InvalidSchema(path, f"'{keyword}' must be a non-negative integer")
        return int(value)

    def _counting(self, least: str, most: str, kind: JsonKind) -> dict[str, Callable[[Schema, str], int]]:
        def read(schema: Schema, path: str) -> int:
            low, high = self._counts(schema, least, most, path)
            return self.table.add(nodes.Size(kind, low, high), path, least if low else most)

        return {least: read, most: read}

    def _unique(self, schema: Schema, path: str) -> int:
        if not isinstance(schema["uniqueItems"], bool):
            raise InvalidSchema(path, "'uniqueItems' must be true or false")
        return self.table.add(nodes.Unique(), path, "uniqueItems") if schema["uniqueItems"] else TRUE

    def _pattern(self, pattern: Json, path: str, keyword: str, kind: JsonKind) -> int:
        if not isinstance(pattern, str):
            raise InvalidSchema(path, f"'{keyword}' must be a regular expression")
        self._budget.spend("text", len(pattern))
        try:
            search_language(pattern, self._budget.limits)
        except InvalidPattern as error:
            self._report.refuse(
                path, keyword, f"cannot be compiled: {error.reason} (character {error.position})"
            )
            return self.table.left_out(kind, path, keyword)
        return self.table.add(nodes.Pattern(pattern), path, keyword)

    def _format(self, schema: Schema, path: str) -> int:
        name = schema["format"]
        if not isinstance(name, str):
            raise InvalidSchema(path, "'format' must be a string")
        return self.table.add(nodes.Format(name), path, "format") if name in STRING_FORMATS else TRUE

    def _enum(self, schema: Schema, path: str) -> int:
        values = schema["enum"]
        if not isinstance(values, list):
            raise InvalidSchema(path, "'enum' must be a list")
        self._budget.check("values", len(values))
        return self._values(values, path, "enum")

    def _values(self, values: list[Json], path: str, keyword: str) -> int:
        scalars = self._scalars([x for x in values if not isinstance(x, (list, dict))], path)
        compounds = [self._compound(x, path, keyword) for x in values if isinstance(x, (list, dict))]
        plain = [self.table.add(scalars, path, keyword)] if len(compounds) < len(values) else []
        return self.table.any(*plain, *compounds)

    def _scalars(self, values: list[Json], path: str) -> nodes.Scalars:
        strings = tuple(dict.fromkeys(x for x in values if isinstance(x, str)))
        self._budget.spend("text", sum(map(len, strings)))
        numbers = [x for x in values if isinstance(x, (int, float)) and not isinstance(x, bool)]
        if any(not is_finite(x) for x in numbers):
            raise InvalidSchema(path, "a value is not a number that JSON knows, or is too long")
        return nodes.Scalars(
            null=None in values,
            booleans=frozenset(x for x in values if isinstance(x, bool)),
            numbers=tuple(dict.fromkeys(exact(x) for x in numbers)),
            strings=strings,
        )

    def _compound(self, value: Json, path: str, keyword: str, depth: int = 0) -> int:
        self._budget.spend("schemas")
        self._budget.check("depth", depth)
        parts: list[nodes.Node] = []
        if isinstance(value, list):
            items = tuple(self._compound(x, path, keyword, depth + 1) for x in value)
            size = nodes.Size(JsonKind.ARRAY, len(items), len(items))
            parts += [nodes.Types(frozenset({"array"})), nodes.Items(items, FALSE), size]
        elif isinstance(value, dict):
            named = tuple((k, self._compound(v, path, keyword, depth + 1)) for k, v in value.items())
            self._budget.spend("text", sum(map(len, value)))
            required = nodes.Required(tuple(value))
            parts += [nodes.Types(frozenset({"object"})), nodes.Properties(named, (), FALSE), required]
        else:
            parts.append(self._scalars([value], path))
        return self.table.all(*(self.table.add(x, path, keyword) for x in parts))

    # Objects

    def _named(self, schema: Schema, keyword: str, path: str) -> list[tuple[str, int]]:
        schemas = schema.get(keyword, {})
        if not isinstance(schemas, dict):
            raise InvalidSchema(path, f"'{keyword}' must be an object")
        self._budget.check("values", len(schemas))
        self._budget.spend("text", sum(map(len, schemas)))
        return [(k, self.schema(v, f"{path}/{keyword}/{escaped(k)}")) for k, v in schemas.items()]

    def _properties(self, schema: Schema, path: str) -> int:
        named = self._named(schema, "properties", path)
        patterns = self._named(schema, "patternProperties", path)
        read = {p: self._pattern(p, path, "patternProperties", JsonKind.OBJECT) for p, _ in patterns}
        left_out = [node for node in read.values() if isinstance(self.table[node], nodes.LeftOut)]
        read_patterns = tuple((p, value) for p, value in patterns if read[p] not in left_out)
        rest = self._rest(schema, path, "additionalProperties", JsonKind.OBJECT)
        # A name may match the patterns that are left out, or not.
        rest = self.table.any(rest, *(value for p, value in patterns if read[p] in left_out))
        writes_rest = None if left_out else self._writes_rest(schema)
        found = nodes.Properties(tuple(named), read_patterns, rest, writes_rest)
        keyword = next(k for k in _PROPERTY_KEYWORDS if k in schema)
        return self.table.all(self.table.add(found, path, keyword), *left_out)

    def _writes_rest(self, schema: Schema) -> bool | None:
        if not self._readers.closes_objects:
            return None
        explicit = [schema[k] for k in ("additionalProperties", "unevaluatedProperties") if k in schema]
        if explicit:
            return None if False in explicit else True
        return False if "properties" in schema else None

    def _rest(self, schema: Schema, path: str, additional: str, kind: JsonKind) -> int:
        if additional in schema:
            return self.schema(schema[additional], f"{path}/{additional}")
        if KEYWORDS[kind] not in schema or looks_beside(schema, kind):
            return TRUE
        return self.schema(schema[KEYWORDS[kind]], f"{path}/{KEYWORDS[kind]}")

    def _require(self, names: Json, path: str, keyword: str) -> int:
        if not isinstance(names, list) or not all(isinstance(x, str) for x in names):
            raise InvalidSchema(path, f"'{keyword}' must be a list of names")
        required = tuple(dict.fromkeys(x for x in names if isinstance(x, str)))
        self._budget.check("values", len(required))
        return self.table.add(nodes.Required(required), path, keyword) if required else TRUE

    def _property_names(self, schema: Schema, path: str) -> int:
        names = self.schema(schema["propertyNames"], f"{path}/propertyNames")
        return self.table.add(nodes.PropertyNames(names), path, "propertyNames")

    def _dependencies(self, schema: Schema, path: str) -> int:
        parts = []
        for keyword in _DEPENDENCIES:
            entries = schema.get(keyword, {})
            if not isinstance(entries, dict):
                raise InvalidSchema(path, f"'{keyword}' must be an object")
            parts += [self._dependency(k, v, path, keyword) for k, v in entries.items()]
        return self.table.all(*parts)

    def _dependency(self, name: str, needed: Json, path: str, keyword: str) -> int:
        there = self.table.add(nodes.Required((name,)), path, keyword)
        if isinstance(needed, str):
            needed = [needed]
        if isinstance(needed, list):
            then = self._require(needed, path, keyword)
        else:
            then = self.schema(needed, f"{path}/{keyword}/{escaped(name)}")
        objects = self.table.add(nodes.Types(frozenset({"object"})), path, keyword)
        applies = self.table.all(objects, there)
        return self.table.any(self.table.negate(applies), then)

    # Arrays

    def _items(self, schema: Schema, path: str) -> int:
        prefix, rest_keyword = schema.get("prefixItems", []), "items"
        if isinstance(schema.get("items"), list):
            prefix, rest_keyword = schema["items"], "additionalItems"
        if not isinstance(prefix, list):
            raise InvalidSchema(path, "'prefixItems' must be a list of schemas")
        self._budget.check("values", len(prefix))
        name = "prefixItems" if rest_keyword == "items" else "items"
        first = tuple(self.schema(x, f"{path}/{name}/{i}") for i, x in enumerate(prefix))
        rest = self._rest(schema, path, rest_keyword, JsonKind.ARRAY)
        return self.table.add(nodes.Items(first, rest), path, name if prefix else rest_keyword)

    def _contains(self, schema: Schema, path: str) -> int:
        low, high = self._counts(schema, "minContains", "maxContains", path)
        item = self.schema(schema["contains"], f"{path}/contains")
        low = low if "minContains" in schema else 1
        return self.table.add(nodes.Contains(item, low, high), path, "contains")

    # Combinations

    def _list(self, schema: Schema, keyword: str, path: str) -> list[int]:
        schemas = schema[keyword]
        if not isinstance(schemas, list) or not schemas:
            raise InvalidSchema(path, f"'{keyword}' must be a list of schemas")
        self._budget.check("values", len(schemas))
        return [self.schema(x, f"{path}/{keyword}/{i}") for i, x in enumerate(schemas)]

    def _one_of(self, schema: Schema, path: str) -> int:
        items = [x for x in self._list(schema, "oneOf", path) if x != FALSE]
        if not items:
            return FALSE
        return items[0] if len(items) == 1 else self.table.add(nodes.OneOf(tuple(items)), path, "oneOf")

    def _if(self, schema: Schema, path: str) -> int:
        if "then" not in schema and "else" not in schema:
            return TRUE
        test = self.schema(schema["if"], f"{path}/if")
        then = self.schema(schema.get("then", True), f"{path}/then")
        otherwise = self.schema(schema.get("else", True), f"{path}/else")
        return self.table.any(self.table.all(test, then), self.table.all(self.table.negate(test), otherwise))


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
