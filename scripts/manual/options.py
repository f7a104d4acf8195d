"""The options of `serve`, from `Settings`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from pydantic.fields import FieldInfo

from manual.table import table
from openai_cpu_server.model_source.aliases import ALIASES
from openai_cpu_server.settings import Settings

_GROUPS = {
    "config": "Model and answers",
    "host": "Address, keys and HTTPS",
    "ctx_size": "Engine: memory and threads",
    "prefill_tokens": "Engine: steps and priorities",
    "speculation": "Speculation",
    "prefix_sharing": "Prefix cache",
    "cache_dir": "Measured costs",
    "default_priority": "Limits for requests",
    "max_connections": "Connections",
    "jobs_db": "Batch jobs",
    "drain_seconds": "Stop, hang and crash",
    "keep_alive_s": "Streams, log and traces",
}
"""The first option of each group -> its heading, in the order of `Settings`."""
_DEFAULT = "; default: "
"""It stands before a default that depends on the machine, in the description of the option."""


def option_tables() -> str:
    return "\n".join(
        f"## {heading}\n\n" + table(("Option", "Default", "Meaning"), map(_row, names))
        for heading, names in _groups()
    )


def alias_table() -> str:
    """What the short names for models stand for."""
    rows = ((f"`{alias}`", f"`{name}`") for alias, name in ALIASES.items())
    return "\n## Aliases\n\n" + table(("`--model`", "stands for"), rows)


def option(name: str) -> str:
    """The option as one gives it: a switch that is on is one that can be switched off."""
    kebab = name.replace("_", "-")
    return f"--no-{kebab}" if Settings.model_fields[name].default is True else f"--{kebab}"


def _groups() -> Iterator[tuple[str, list[str]]]:
    names = list(Settings.model_fields)
    starts = [*map(names.index, _GROUPS), len(names)]
    for heading, (begin, end) in zip(_GROUPS.values(), pairwise(starts), strict=True):
        yield heading, names[begin:end]


def _row(name: str) -> tuple[str, str, str]:
    field = Settings.model_fields[name]
    meaning, _, default = (field.description or "").partition(_DEFAULT)
    return f"`{option(name)}`", default or _default(field), meaning + _choices(field)


def _choices(field: FieldInfo) -> str:
    annotation = str(field.annotation)
    found = re.findall(r"'([^']+)'", annotation) if "Literal" in annotation else []
    return f" ({', '.join(f'`{choice}`' for choice in found)})" if found else ""


def _default(field: FieldInfo) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    if field.default is None or field.default == []:
        return "none"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"
