"""Finds the file that a value of `--model` means, and the model that is served where nobody names one."""

from __future__ import annotations

import difflib
import logging
import os
import pkgutil
import re
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.aliases import ALIASES
from openai_cpu_server.model_source.demo import DemoFiles
from openai_cpu_server.model_source.hub_name import PREFIX, HubName, parse_hub_name
from openai_cpu_server.model_source.packaged import PACKAGED
from openai_cpu_server.user_folders import expanded, require_utf8

logger = logging.getLogger(__name__)

_DEMO = "demo"
_DEFAULT = "smollm2"
_FETCH = "openai_cpu_server.model_source.hub:fetch"
_FIND_CACHED = "openai_cpu_server.model_source.hub:find_cached"
"""These functions are imported when they are called:
most starts need no hub, and its library takes a quarter of a start."""


class FoundModel(msgspec.Struct, frozen=True):
    name: str
    """What the API calls the model, unless the user says otherwise."""
    path: Path


def model_to_serve(name: str | None) -> FoundModel:
    """The model of that name; None: nobody has named one. Raises StartupError with one line."""
    if name is None:
        return _default_model()
    path = resolve_model(name)
    is_file = "/" in name or ":" in name or name.endswith(".gguf")
    return FoundModel(path.stem if is_file else name, path)


def _default_model() -> FoundModel:
    """The packaged model, else the demo model: whoever names none is not made to wait for a hub."""
    try:
        return FoundModel(_DEFAULT, PACKAGED[_DEFAULT].path())
    except StartupError as error:
        logger.warning("serving the demo model, which is a toy, in place of %s: %s", _DEFAULT, error)
        return FoundModel(_DEMO, resolve_model(_DEMO))


def resolve_model(name: str, *, demo: DemoFiles | None = None) -> Path:
    """The GGUF file that the name means. It may be downloaded first. Raises StartupError with one line.

    `demo` and aliases come before files of the same name (write `./demo`), `hf:` before everything.
    """
    return _tellable(_resolved(name, _FETCH, demo or DemoFiles()))


def local_model(name: str) -> Path:
    """The same file, but nothing is downloaded, for commands from which nobody expects gigabytes."""
    return _tellable(_resolved(name, _FIND_CACHED, DemoFiles()))


def _tellable(path: Path) -> Path:
    require_utf8(path)
    return path


def _resolved(name: str, on_hub: str, demo: DemoFiles) -> Path:
    if name.startswith(PREFIX):
        return _at_hub(on_hub, parse_hub_name(name))
    if name == _DEMO:
        return demo.path()
    if name in PACKAGED:
        return _packaged(name, on_hub)
    if name in ALIASES:
        return _at_hub(on_hub, parse_hub_name(ALIASES[name]))
    return _local_file(name)


def _packaged(alias: str, on_hub: str) -> Path:
    """The file of the alias' package, or else the hub's, if that has it."""
    try:
        return PACKAGED[alias].path()
    except StartupError as error:
        if alias not in ALIASES:
            raise
        missing = error
    name = parse_hub_name(ALIASES[alias])
    try:
        path = _at_hub(on_hub, name)
    except StartupError as error:
        raise StartupError(f"{missing}; {error}") from None
    logger.info("%s; taking %s in its place", missing, name)
    return path


def _at_hub(find: str, name: HubName) -> Path:
    path: Path = pkgutil.resolve_name(find)(name)
    return path


def _local_file(name: str) -> Path:
    try:
        path = expanded(name)
        if path.is_file():
            return path
        is_folder = bool(name) and path.is_dir()
    except OSError as error:  # no access, too long a name
        raise StartupError(f"cannot look for {name}: {error}") from None
    if is_folder:
        raise StartupError(f"{name} is a folder, not a GGUF file")
    if any(separator in name for separator in (os.sep, os.altsep) if separator) or path.suffix == ".gguf":
        raise StartupError(f"there is no file {name}{_hub_hint(name)}")
    raise StartupError(_unknown(name))


def _hub_hint(name: str) -> str:
    """A hint for `OWNER/REPO`, which is a likely slip."""
    return f" (a repository on the hub is {PREFIX}{name})" if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else ""


def _unknown(name: str) -> str:
    known = sorted({*ALIASES, *PACKAGED, _DEMO})
    close = difflib.get_close_matches(name.lower(), known, n=2)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return f"unknown model {name!r}{hint}: PATH, {PREFIX}OWNER/REPO[/FILE], or one of {', '.join(known)}"
