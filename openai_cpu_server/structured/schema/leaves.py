"""Keywords that constrain a value by itself."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial

from openai_cpu_server.structured.options import Budget, InvalidPattern, InvalidSchema, UnenforcedReport
from openai_cpu_server.structured.scalars.numbers import Bound
from openai_cpu_server.structured.scalars.regex import FORMATS, search_language
from openai_cpu_server.structured.schema.document import Json, Schema, exact, is_finite
from openai_cpu_server.structured.schema.nodes import (
    TRUE,
    Count,
    Format,
    Integer,
    JsonKind,
    Length,
    Maximum,
    Minimum,
    MultipleOf,
    NodeTable,
    Pattern,
    PropertyCount,
    Types,
    Unique,
)

_TYPE_NAMES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


class LeafKeywords:
    """Methods read one keyword or a pair each."""

    def __init__(self, table: NodeTable, budget: Budget, report: UnenforcedReport) -> None:
        self._table = table
        self._budget = budget
        self._report = report
        self.handlers: dict[str, Callable[[Schema, str], int]] = {
            "type": self._type,
            "minimum": partial(self._bound, Minimum, "minimum", "exclusiveMinimum"),
            "maximum": partial(self._bound, Maximum, "maximum", "exclusiveMaximum"),
            "exclusiveMinimum": partial(self._open_bound, Minimum, "exclusiveMinimum"),
            "exclusiveMaximum": partial(self._open_bound, Maximum, "exclusiveMaximum"),
            "multipleOf": self._multiple_of,
            **self._counting("minLength", "maxLength", Length),
            "pattern": lambda schema, path: self.pattern(schema["pattern"], path, "pattern", JsonKind.STRING),
            "format": self._format,
            **self._counting("minItems", "maxItems", Count),
            "uniqueItems": self._unique,
            **self._counting("minProperties", "maxProperties", PropertyCount),
        }

    def _type(self, schema: Schema, path: str) -> int:
        given = schema["type"]
        names = given if isinstance(given, list) else [given]
        known = [x for x in names if isinstance(x, str) and x in _TYPE_NAMES]
        if len(known) != len(names) or not names:
            raise InvalidSchema(path, f"unknown 'type' {str(given)[:80]!r}")
        if schema.get("nullable") is True:
            known.append("null")
        return self._table.add(Types(frozenset(known)), path, "type")

    def _decimal(self, schema: Schema, keyword: str, path: str) -> Decimal:
        value = schema[keyword]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InvalidSchema(path, f"'{keyword}' must be a number")
        if not is_finite(value):
            raise InvalidSchema(path, f"'{keyword}' is not finite, or too long a number")
        return exact(value)

    def _bound(
        self, kind: type[Minimum | Maximum], keyword: str, exclusive: str, schema: Schema, path: str
    ) -> int:
        bound = Bound(self._decimal(schema, keyword, path), schema.get(exclusive) is True)
        return self._table.add(kind(bound), path, keyword)

    def _open_bound(self, kind: type[Minimum | Maximum], keyword: str, schema: Schema, path: str) -> int:
        if isinstance(schema[keyword], bool):
            return TRUE
        return self._table.add(kind(Bound(self._decimal(schema, keyword, path), True)), path, keyword)

    def _multiple_of(self, schema: Schema, path: str) -> int:
        step = self._decimal(schema, "multipleOf", path)
        if step <= 0:
            raise InvalidSchema(path, "'multipleOf' must be greater than 0")
        if step == 1:
            return self._table.add(Integer(), path, "multipleOf")
        return self._table.add(MultipleOf(step), path, "multipleOf")

    def counts(self, schema: Schema, low: str, high: str, path: str) -> tuple[int, int | None]:
        """Return integers, by default 0 and None. Raises InvalidSchema."""
        return self._natural(schema, low, path) or 0, self._natural(schema, high, path)

    def _natural(self, schema: Schema, keyword: str, path: str) -> int | None:
        if keyword not in schema:
            return None
        value = self._decimal(schema, keyword, path)
        if value < 0 or value != value.to_integral_value():
            raise InvalidSchema(path, f"'{keyword}' must be a non-negative integer")
        return int(value)

    def _counting(
        self, least: str, most: str, kind: type[Length | Count | PropertyCount]
    ) -> dict[str, Callable[[Schema, str], int]]:
        def read(schema: Schema, path: str) -> int:
            low, high = self.counts(schema, least, most, path)
            return self._table.add(kind(low, high), path, least if low else most)

        return {least: read, most: read}

    def _unique(self, schema: Schema, path: str) -> int:
        if not isinstance(schema["uniqueItems"], bool):
            raise InvalidSchema(path, "'uniqueItems' must be true or false")
        return self._table.add(Unique(), path, "uniqueItems") if schema["uniqueItems"] else TRUE

    def pattern(self, pattern: Json, path: str, keyword: str, kind: JsonKind) -> int:
        """Return `LeftOut` for one that may be left out. Raises InvalidSchema, UnsupportedSchema."""
        if not isinstance(pattern, str):
            raise InvalidSchema(path, f"'{keyword}' must be a regular expression")
        self._budget.spend("text", len(pattern))
        try:
            search_language(pattern, self._budget.limits)
        except InvalidPattern as error:
            self._report.refuse(
                path, keyword, f"cannot be compiled: {error.reason} (character {error.position})"
            )
            return self._table.left_out(kind, path, keyword)
        return self._table.add(Pattern(pattern), path, keyword)

    def _format(self, schema: Schema, path: str) -> int:
        name = schema["format"]
        if not isinstance(name, str):
            raise InvalidSchema(path, "'format' must be a string")
        return self._table.add(Format(name), path, "format") if name in FORMATS else TRUE
