"""Settings of a command line, with help and errors in the user's terms."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import CliApp, CliSettingsSource, SettingsError

from openai_cpu_server.config import sources
from openai_cpu_server.config.command_line import CommandParser, guess, translated, unknown_option
from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.config.settings import OPTIONS_OF_SERVERS, Settings, grouped_options
from openai_cpu_server.errors import StartupError

_KINDS = {
    "Path": "PATH", "list[Path]": "PATH", "int": "N", "float": "NUMBER",
    "{int,{auto,all}}": "N|auto|all", "{int,all}": "N",
}  # fmt: skip
"""Placeholders in the help, by pydantic's type names."""
_DEFAULTS = {
    " (default: null)": "",  # the description says what happens instead
    " (default: [])": "",
    " (default: True)": " (default: on)",
    " (default: False)": " (default: off)",
}


def add_option(parser: argparse._ActionsContainer, *names: str, **kwargs: Any) -> argparse.Action:
    """Call `add_argument` with pydantic's texts rewritten for users."""
    kind = str(kwargs.get("metavar", "{"))
    if kind in _KINDS or not kind.startswith("{"):  # a flag, or a choice that lists its values
        kwargs["metavar"] = _KINDS.get(kind, names[0].rsplit("-", 1)[-1].upper())  # --api-key takes a KEY
    for shown, words in _DEFAULTS.items():
        if kwargs.get("help", "").endswith(shown):
            kwargs["help"] = kwargs["help"].removesuffix(shown) + words
            break
    if (alone := _ALONE.get(names[0])) is not None:
        kwargs |= {"nargs": "?", "const": alone}
    title = _GROUP_OF.get(names[0])
    if title is None or not isinstance(parser, argparse.ArgumentParser):  # hidden, or of a table
        return parser.add_argument(*names, **kwargs)
    group = next((each for each in parser._action_groups if each.title == title), None)
    return (group or parser.add_argument_group(title)).add_argument(*names, **kwargs)


_GROUP_OF = {sources.option(name): heading for heading, names in grouped_options() for name in names}
_UNCUT = ("model", "tensor_place")
_ALONE = {"--cpu-moe": "all"}
"""Values of options that are given without one."""
_REPLACED = {
    "interactive_step_ms": "--stream-rate and --stall-ms",
    "batch_step_ms": "--batch-stall-ms",
    "tile_filling": "--experiment tile_filling=off",
    "mixed_steps": "--experiment mixed_steps=off",
    "continuous_batching": "--experiment continuous_batching=off",
    "prefix_sharing": "--experiment prefix_sharing=off",
}
_TABLES = ("dict_type", "model_type")


def _in_words(message: str) -> str:
    message = message.removeprefix("Value error, ").partition(", unable to parse ")[0]
    return message.replace("Input should be ", "must be ", 1).replace("Field required", "is missing")


class _SettingsParser(CommandParser):
    """Parser of `serve`'s options. Guesses include the other options of its command."""

    def __init__(self, command: CommandParser | None) -> None:
        super().__init__("serve", Settings.__doc__ or "", usage="%(prog)s [options]")
        self._command = command

    @property
    def options(self) -> list[str]:
        return super().options + (self._command.options if self._command else [])


_MOST_PROBLEMS = 20
"""Reported problems, each of which compares with all options."""


def read_settings(
    arguments: Sequence[str], *, command: CommandParser | None = None, is_server: bool = True
) -> Settings:
    """`command`: parser of a command's other options. `is_server`: False rejects servers' options."""
    arguments = sources.without_empty_values(translated(arguments))
    for name in () if is_server else sorted(OPTIONS_OF_SERVERS):
        if argument := sources.named_by(name, arguments):
            raise StartupError(f"{argument} is an option of the server, not of this command")
    for name in _REPLACED:
        if sources.named_by(name, arguments) or sources.variable(name) in os.environ:
            raise StartupError(_problem((name,), ""))
    sources.reject_unknown(Settings.model_fields)
    config = _config_path(arguments)
    settings = Settings if config is None else _with_file(config)
    named, others = _uncut_and_others(arguments)
    parser = _SettingsParser(command)
    try:
        source: CliSettingsSource[CommandParser] = CliSettingsSource(
            settings, root_parser=parser, add_argument_method=add_option
        )
        return CliApp.run(settings, cli_args=others, cli_settings_source=source, **named)
    except ValidationError as error:
        problems = (
            _line(e, sources.option_source(str(e["loc"][0]), arguments, config) if e["loc"] else "")
            for e in error.errors()[:_MOST_PROBLEMS]
        )
        raise StartupError("; ".join(problems)) from None
    except (SettingsError, OSError, ValueError) as error:
        if isinstance(error.__cause__, StartupError):
            raise error.__cause__ from None
        raise StartupError(f"cannot read the settings: {error}") from None
    except RecursionError:
        raise StartupError("cannot read the settings: a value is nested too deeply") from None


def _uncut_and_others(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate values that pydantic would split at commas from other arguments."""
    parser = CommandParser("serve", "")
    for name in _UNCUT:
        parser.add_argument(sources.option(name), dest=name, action="append", default=argparse.SUPPRESS)
    if {"-h", "--help"} & set(arguments):
        return {}, list(arguments)
    values, others = parser.parse_known_args(arguments)
    return vars(values), others


def _with_file(path: Path) -> type[Settings]:
    if not path.is_file():
        raise StartupError(f"the configuration file {path} does not exist")
    return type("Settings", (Settings,), {"__doc__": Settings.__doc__}, toml_file=path)


def _config_path(arguments: Sequence[str]) -> Path | None:
    """Find the TOML file, which must be known first."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named = sources.set_value(
        "config", os.environ.get(sources.variable("config")), sources.variable("config")
    )
    parser.add_argument("--config", default=named)
    path = parser.parse_known_args(arguments)[0].config
    return expanded_path(path) if path else None


_NUM_OF_TABLE = {"models": 2, "mcp": 2, "prices": 2, "ray": 1, "aliases": 1}
"""Number of keys that name a table, by the first one."""


def _line(error: ErrorDetails, origin: str) -> str:
    location = error["loc"]
    if len(location) == 1 and isinstance(error["input"], dict) and location[0] not in _NUM_OF_TABLE:
        tables = [f"[{name}]" for name in _NUM_OF_TABLE]
        return f"[{location[0]}]: unknown table{guess(str(location[0]), tables)}{origin}"
    message = "must be a table" if error["type"] in _TABLES else _in_words(error["msg"])
    return (_unknown_key if error["type"] == "extra_forbidden" else _problem)(location, message, origin)


def _problem(location: tuple[int | str, ...], message: str, origin: str = "") -> str:
    """`location`: option and, for a list, an index, which is omitted."""
    names = [part for part in location if isinstance(part, str)]
    if names and names[0] in _REPLACED:
        return f"{sources.option(names[0])} was removed: use {_REPLACED[names[0]]}"
    num_of_table = _NUM_OF_TABLE.get(names[0], 0) if names else 0
    if num_of_table:
        table = f"[{'.'.join(names[:num_of_table])}]"
        return f"{' '.join([table, *names[num_of_table:]])}: {message}{origin}"
    return f"{sources.option('-'.join(names))}: {message}{origin}" if location else message


def _unknown_key(location: tuple[int | str, ...], message: str, origin: str) -> str:
    """`location`: of a key that its table does not have."""
    key, table = str(location[-1]), _table_at(location[:-1])
    if table is not Settings:
        return _problem(location, f"unknown option{guess(key, table.model_fields)}", origin)
    if key in _REPLACED:
        return _problem(location, message)
    return unknown_option(sources.option(key), map(sources.option, Settings.model_fields)) + origin


def _table_at(location: Sequence[int | str]) -> type[BaseModel]:
    """Follow the keys of tables from the root. Names of entries and indexes of lists are skipped."""
    table: type[BaseModel] = Settings
    rest = iter(location)
    for part in rest:
        annotation = table.model_fields[str(part)].annotation if str(part) in table.model_fields else None
        if inner := _models_in(annotation):
            table = inner[0]
            if get_origin(annotation) is dict:
                next(rest, None)
    return table


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]
