"""Routes and fields of their bodies, from the published document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from manual.table import table
from openai_cpu_server.api.application import ROWS
from openai_cpu_server.http.application import document
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute

Json = dict[str, Any]
_KINDS = {"integer": "integer", "number": "number", "boolean": "true or false", "string": "text"}
_BOUNDS = {
    "minimum": "from {:g}",
    "exclusiveMinimum": "above {:g}",
    "maximum": "to {:g}",
    "exclusiveMaximum": "below {:g}",
}
_MOST_SHOWN = 2**31
"""Larger bounds are those of C's integers, which mean nothing to users."""


def route_tables() -> str:
    described: Json = json.loads(json.dumps(document(ROWS, lenient=False)))
    heads = ("Route", "What it does", "Scope", "Errors")
    tags = (
        f"## {tag}\n\n" + table(heads, [_route(row, described) for row in ROWS if row.tag == tag])
        for tag in dict.fromkeys(row.tag for row in ROWS)
    )
    return "\n".join([*tags, *_bodies(described)])


def _route(row: ApiRoute, described: Json) -> tuple[str, str, str, str]:
    path = row.shown_path
    if row.method == WEBSOCKET:
        return f"`GET {path}` as a WebSocket", row.summary, "`inference`", "as messages"
    found = described["paths"][path][row.method.lower()]
    scope = found.get("x-required-scope")
    errors = ", ".join(status for status in found["responses"] if int(status) >= 400)
    return f"`{row.name}`", row.summary, f"`{scope}`" if scope else "none", errors or "none"


def _bodies(described: Json) -> Iterator[str]:
    described_bodies = set()
    for row in ROWS:
        if row.body is not None and row.body not in described_bodies:
            described_bodies.add(row.body)
            yield f"## Body of {row.shown_path}\n\n" + _fields(row, described)


def _fields(row: ApiRoute, described: Json) -> str:
    assert row.body is not None
    schema = described["components"]["schemas"][f"request.{row.body.__name__}"]
    required = schema.get("required", [])
    names = sorted(schema["properties"], key=lambda name: name not in required)
    rows = (
        (f"`{name}`" + " (required)" * (name in required), _kind(schema["properties"][name], described))
        for name in names
        if not {"x-ignored", "x-refused"} & schema["properties"][name].keys()
    )
    return table(("Field", "Value"), rows)


def _kind(schema: Json, described: Json) -> str:
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        kinds = (_kind(part, described) for part in alternatives if part.get("type") != "null")
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return _kind(described["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]], described)
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'], described)}"
    return _KINDS.get(schema.get("type", ""), "object") + _bounds(schema)


def _bounds(schema: Json) -> str:
    return "".join(
        " " + words.format(schema[key])
        for key, words in _BOUNDS.items()
        if key in schema and abs(schema[key]) < _MOST_SHOWN
    )
