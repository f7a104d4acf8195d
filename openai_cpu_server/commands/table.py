"""The functions that run `openai-cpu-server COMMAND`. Without a command it serves."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

from openai_cpu_server import __version__
from openai_cpu_server.commands.plain_text import columns, show
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import put_in_front
from openai_cpu_server.reader.child import ReaderChild

_HELP = ("-h", "--help")


class _Command(NamedTuple):
    entry_point: str
    """MODULE:FUNCTION, which takes the arguments behind the command.

    It is imported only when it is called: no command needs what all of them import, and `--version` need not
    wait for a server.
    """
    summary: str
    computes: bool = False
    """Whether it computes in its own process, where our kernels then go in front of what it imports."""
    reads: bool = False
    """Whether it takes processes that read texts, which start while the rest is imported."""


def load(arguments: Sequence[str]) -> Callable[[], None]:
    """Import the function for these arguments, and bind it to them.

    The function and `load` both raise StartupError with one line.
    """
    first = arguments[0] if arguments else "serve"
    if first in _HELP:
        return lambda: show(_overview())
    if first == "--version":
        return functools.partial(version, ())
    if first in _COMMANDS:
        arguments = arguments[1:]
    elif first.startswith("-"):
        first = "serve"
    else:
        raise StartupError(f"there is no command {first!r}; the commands are {', '.join(_COMMANDS)}")
    command = _COMMANDS[first]
    if command.computes:
        put_in_front()
    is_help = bool({*_HELP} & {*arguments})
    readers = (ReaderChild(), ReaderChild()) if command.reads and not is_help else ()
    run = functools.partial(pkgutil.resolve_name(command.entry_point), arguments)
    return functools.partial(run, readers) if readers else run


def version(_: Sequence[str]) -> None:
    show(__version__)


def _overview() -> str:
    listed = columns([("  " + name, command.summary) for name, command in _COMMANDS.items()])
    return (
        "usage: openai-cpu-server [COMMAND] [options]\n\n"
        f"{listed}\n\n"
        "Without a command it serves. `openai-cpu-server COMMAND --help` lists a command's options."
    )


_COMMANDS = {
    "serve": _Command(
        "openai_cpu_server.commands.serve:serve", "serve a GGUF model behind the OpenAI API", reads=True
    ),
    "batch": _Command(
        "openai_cpu_server.commands.batch.command:batch", "run a JSONL file of requests without a server"
    ),
    "grammar": _Command(
        "openai_cpu_server.commands.grammar:grammar",
        "print the grammar of a JSON Schema, or check texts against it",
    ),
    "inspect": _Command(
        "openai_cpu_server.commands.inspect.command:inspect",
        "say what a model file holds and how it would run here",
        computes=True,
    ),
    "key": _Command("openai_cpu_server.commands.key:key", "make an API key"),
    "quantize": _Command(
        "openai_cpu_server.commands.quantize.command:quantize", "write a smaller model file"
    ),
    "ray": _Command("openai_cpu_server.commands.ray:ray", "serve with replicas, on Ray Serve"),
    "tune": _Command(
        "openai_cpu_server.commands.tune.command:tune",
        "measure the best settings for a model on this machine",
    ),
    "version": _Command("openai_cpu_server.commands.table:version", "print the version"),
}
