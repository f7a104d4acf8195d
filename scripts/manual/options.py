"""Options of `serve`, from `Settings`."""

from __future__ import annotations

import re

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from manual.table import table
from openai_cpu_server.config.models import ModelOptions, ModelTable
from openai_cpu_server.config.settings import RayTable, Settings, grouped_options
from openai_cpu_server.model_source.aliases import ALIASES

_TABLES = {
    "models": "[models.NAME]",
    "aliases": "[aliases]",
    "ray": "[ray]",
    "mcp": "[mcp.NAME]",
    "prices": "[prices.MODEL]",
}
_DEFAULT = "; default: "
"""Begins a default that depends on the machine, in an option's description."""


def option_tables() -> str:
    return "\n".join(
        f"## {heading}\n\n" + table(("Option", "Default", "Meaning"), map(_row, names))
        for heading, names in grouped_options()
    )


def model_table() -> str:
    """Return keys of `[models.NAME]` beside the options of a model."""
    names = [name for name in ModelTable.model_fields if name not in ModelOptions.model_fields]
    rows = ((f"`{name}`", *_row_of(ModelTable.model_fields[name])) for name in names)
    return "\n## `[models.NAME]`\n\n" + table(("Key", "Default", "Meaning"), rows)


def ray_table() -> str:
    rows = ((f"`{name}`", *_row_of(field)) for name, field in RayTable.model_fields.items())
    return "\n## `[ray]`\n\n" + table(("Key", "Default", "Meaning"), rows)


def alias_table() -> str:
    rows = ((f"`{alias}`", f"`{name}`") for alias, name in ALIASES.items())
    return "\n## Aliases\n\n" + table(("`--model`", "stands for"), rows)


def option(name: str) -> str:
    """Return the option as users write it; a switch that is on as the one that turns it off."""
    if name in _TABLES:
        return _TABLES[name]
    kebab = name.replace("_", "-")
    return f"--no-{kebab}" if Settings.model_fields[name].default is True else f"--{kebab}"


def _row(name: str) -> tuple[str, str, str]:
    return f"`{option(name)}`", *_row_of(Settings.model_fields[name])


def _row_of(field: FieldInfo) -> tuple[str, str]:
    meaning, _, default = (field.description or "").partition(_DEFAULT)
    return default or _default(field), meaning + _choices(field)


def _choices(field: FieldInfo) -> str:
    annotation = str(field.annotation)
    found = re.findall(r"'([^']+)'", annotation) if "Literal" in annotation else []
    return f" ({', '.join(f'`{choice}`' for choice in found)})" if found else ""


def _default(field: FieldInfo) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if field.default in (None, [], {}) or isinstance(field.default, BaseModel):
        return "none"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"
