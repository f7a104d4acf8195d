"""Formats that are data in `forms.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from openai_cpu_server.prompt.tool_formats.form import CallIds, ToolFormat
from openai_cpu_server.prompt.tool_formats.parameters import Parameters
from openai_cpu_server.prompt.tool_formats.patterns import read_pattern

_PATTERNS = ("opening", "head", "tail", "between", "closing", "begin", "behind")


def _fields(table: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in _PATTERNS:
            values[key] = read_pattern(value)
        elif key == "ids":
            values[key] = CallIds[value.upper()]
        elif key == "parameters":
            values[key] = Parameters(**_fields(value))
        elif key != "like":
            values[key] = tuple(value) if isinstance(value, list) else value
    return values


_TABLES: dict[str, dict[str, Any]] = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
FORMS = {
    name: ToolFormat(name, **_fields({**_TABLES.get(table.get("like", ""), {}), **table}))
    for name, table in _TABLES.items()
}
GENERIC = msgspec.structs.replace(
    FORMS["hermes"], name="generic", signs=(), others=(), replaces_template=True
)
"""Format for templates that know no tools, or use an unknown one."""
