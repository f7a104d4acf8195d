"""The command line: `openai-cpu-server COMMAND [options]`. Without a command it serves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from openai_cpu_server import __version__
from openai_cpu_server.api.access.new_key import new_key
from openai_cpu_server.app import serve
from openai_cpu_server.batch import batch
from openai_cpu_server.errors import StartupError
from openai_cpu_server.grammar_command import grammar
from openai_cpu_server.settings import read_settings
from openai_cpu_server.tune import tune

_EXIT_WRONG_START = 2


def main() -> None:
    arguments = sys.argv[1:]
    named = bool(arguments) and arguments[0] in _COMMANDS
    command = _COMMANDS[arguments[0]] if named else _serve
    try:
        command(arguments[1:] if named else arguments)
    except StartupError as error:
        print(f"openai-cpu-server: {error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_START)
    except KeyboardInterrupt:
        sys.exit(130)


def _serve(arguments: Sequence[str]) -> None:
    serve(read_settings(arguments))


def _key(arguments: Sequence[str]) -> None:
    if len(arguments) != 1:
        raise StartupError("usage: openai-cpu-server key NAME")
    print(new_key(arguments[0]))


def _version(_: Sequence[str]) -> None:
    print(__version__)


_COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "batch": batch,
    "grammar": grammar,
    "key": _key,
    "serve": _serve,
    "tune": tune,
    "version": _version,
    "--version": _version,
}
