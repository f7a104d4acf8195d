"""Syntax of adapters: `[MODEL/]NAME=PATH[@SCALE]`, or tables in TOML."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

ADAPTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Names lack colons and slashes: requests write `MODEL:NAME`, options `MODEL/NAME`."""
LARGEST_SCALE = 100.0
"""Bound against typos, which would fill activations with infinities."""

_SMALLEST_SCALE = 1e-6
"""Smaller scales count as 0, or are 0 as float32."""


class AdapterSource(NamedTuple):
    name: str
    path: str
    """PATH or hf:OWNER/REPO/FILE."""
    scale: float = 1.0


class AdapterOption(NamedTuple):
    model: str | None
    """Served name, or None for the only model."""
    source: AdapterSource


def parse_adapter(text: str) -> AdapterOption:
    """Parse one option. Raises ValueError with one line."""
    left, equals, right = text.partition("=")
    model, slash, name = left.rpartition("/")
    if not equals or not right or (slash and not model):
        raise ValueError(f"{text!r} is not [MODEL/]NAME=PATH[@SCALE]")
    return AdapterOption(model or None, _source(name, right))


def adapters_of_table(table: object) -> tuple[AdapterSource, ...]:
    """Parse `[models.NAME.adapters]`: NAME = "PATH[@SCALE]" or {path = ..., scale = ...}. Raises ValueError
    with one line."""
    if not isinstance(table, dict):
        raise ValueError('adapters are a table: NAME = "PATH[@SCALE]"')
    return tuple(_of_entry(str(name), value) for name, value in table.items())


def _checked(name: str, path: str, scale: float = 1.0) -> AdapterSource:
    if not ADAPTER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid adapter name: up to 64 letters, digits, '.', '_' and '-'")
    if not math.isfinite(scale) or not _SMALLEST_SCALE <= abs(scale) <= LARGEST_SCALE:
        raise ValueError(f"a scale is a number between -{LARGEST_SCALE:g} and {LARGEST_SCALE:g}, not 0")
    return AdapterSource(name, path, scale)


def _of_entry(name: str, value: object) -> AdapterSource:
    if isinstance(value, str):
        return _source(name, value)
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise ValueError(f'adapter {name}: write {name} = "PATH[@SCALE]" or {{path = ..., scale = ...}}')
    unknown = next((key for key in value if key not in ("path", "scale")), None)
    if unknown is not None:
        raise ValueError(f"adapter {name}: unknown option {unknown!r}; the options are path and scale")
    scale = value.get("scale", 1.0)
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise ValueError(f"adapter {name}: scale must be a number")
    return _checked(name, value["path"], float(scale))


def _source(name: str, text: str) -> AdapterSource:
    path, at, scale = text.rpartition("@")
    if at and path:
        try:
            number = float(scale)
        except ValueError:
            pass  # a path with an @
        else:
            return _checked(name, path, number)
    return _checked(name, text)
