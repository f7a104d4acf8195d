"""What `openai-cpu-server COMMAND` runs. Without a command it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from openai_cpu_server import __version__
from openai_cpu_server.api.access.new_key import new_key
from openai_cpu_server.app import serve
from openai_cpu_server.batch import batch
from openai_cpu_server.errors import StartupError
from openai_cpu_server.grammar_command import grammar
from openai_cpu_server.inspection.command import inspect
from openai_cpu_server.plain_text import columns, say, show
from openai_cpu_server.quantize.command import quantize
from openai_cpu_server.settings import read_settings
from openai_cpu_server.tune import tune

_HELP = ("-h", "--help")
_KEY_USAGE = "usage: openai-cpu-server key NAME"
_KEY_HELP = f"""{_KEY_USAGE}

Make a random API key. It is shown once, on standard error; on standard output are the lines for the file of
--api-keys."""


class _Command(NamedTuple):
    run: Callable[[Sequence[str]], None]
    summary: str


def run(arguments: Sequence[str]) -> None:
    """Raises StartupError with one line."""
    first = arguments[0] if arguments else "serve"
    if first in _HELP:
        show(_overview())
    elif first in _COMMANDS:
        _COMMANDS[first].run(arguments[1:])
    elif first == "--version":
        _version(())
    elif first.startswith("-"):
        _serve(arguments)
    else:
        raise StartupError(f"there is no command {first!r}; the commands are {', '.join(_COMMANDS)}")


def _overview() -> str:
    listed = columns([("  " + name, command.summary) for name, command in _COMMANDS.items()])
    return (
        "usage: openai-cpu-server [COMMAND] [options]\n\n"
        f"{listed}\n\n"
        "Without a command it serves. `openai-cpu-server COMMAND --help` lists a command's options."
    )


def _serve(arguments: Sequence[str]) -> None:
    serve(read_settings(arguments))


def _key(arguments: Sequence[str]) -> None:
    if len(arguments) == 1 and arguments[0] in _HELP:
        show(_KEY_HELP)
        return
    if len(arguments) != 1:
        raise StartupError(_KEY_USAGE)
    key, lines = new_key(arguments[0])
    say(f"{arguments[0]}'s key, shown this once: {key}")  # not into the file that `>>` adds the lines to
    show(lines)


def _version(_: Sequence[str]) -> None:
    show(__version__)


_COMMANDS = {
    "serve": _Command(_serve, "serve a GGUF model behind the OpenAI API"),
    "batch": _Command(batch, "run a JSONL file of requests without a server"),
    "grammar": _Command(grammar, "print the grammar of a JSON Schema, or check texts against it"),
    "inspect": _Command(inspect, "say what a model file holds and how it would run here"),
    "key": _Command(_key, "make an API key"),
    "quantize": _Command(quantize, "write a smaller model file"),
    "tune": _Command(tune, "measure the best settings for a model on this machine"),
    "version": _Command(_version, "print the version"),
}
