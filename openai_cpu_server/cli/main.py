"""Dispatch of commands, each of which imports what it needs."""

from __future__ import annotations

import functools
import gc
import io
import pkgutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from openai_cpu_server import __version__
from openai_cpu_server.cli.plain_text import columns, show
from openai_cpu_server.config.command_line import guess
from openai_cpu_server.config.folders import require_utf8
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.library import put_in_front
from openai_cpu_server.reader.child import ReaderChild

_HELP = ("-h", "--help", "help")
_ROOM = "openai_cpu_server.cli"


class _Command(NamedTuple):
    entry_point: str
    """MODULE:FUNCTION of this package, imported when called with the arguments after the command."""
    summary: str
    computes: bool = False
    """Load our kernels before its imports."""
    reads: bool = False
    """Start a reader process for it while the rest is imported."""


def load_command(arguments: Sequence[str]) -> Callable[[], None]:
    """Import the command's function and bind its arguments."""
    first = arguments[0] if arguments else "serve"
    first = _SAME.get(first, first)
    if first == "help" and arguments[1:]:
        return load_command([arguments[1], "--help"])
    if first in _HELP:
        overview = columns([("  " + name, command.summary) for name, command in _COMMANDS.items()])
        return functools.partial(
            show,
            "usage: openai-cpu-server [COMMAND] [options]\n\n"
            f"{overview}\n\n"
            "Without a command it serves. `openai-cpu-server COMMAND --help` lists a command's options.",
        )
    if first == "--version":
        return functools.partial(version, ())
    if first in _COMMANDS:
        arguments = arguments[1:]
    elif first.startswith("-"):
        first = "serve"
    elif first in _OF_RUNNING_SERVERS:
        raise StartupError(
            f"unknown command {first!r}: a running server does this for {_OF_RUNNING_SERVERS[first]}, "
            f"which `ollama {first}` sends"
        )
    else:
        hint = guess(first, _COMMANDS) or (
            f": `openai-cpu-server serve {first}` serves a model, `openai-cpu-server help` lists the commands"
        )
        raise StartupError(f"unknown command {first!r}{hint}")
    command = _COMMANDS[first]
    if command.computes:
        put_in_front()
    is_help = not {"-h", "--help"}.isdisjoint(arguments)
    if command.reads:  # the keys are read later; an ignored signal would stay ignored in child processes
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    reader = ReaderChild() if command.reads and not is_help else None
    run = functools.partial(pkgutil.resolve_name(f"{_ROOM}.{command.entry_point}"), arguments)
    return run if reader is None else functools.partial(run, reader)


def version(_: Sequence[str]) -> None:
    show(__version__)


_SAME = {"download": "pull", "ls": "list", "remove": "rm", "show": "inspect"}
"""Names in other programs, with the commands here."""
_OF_RUNNING_SERVERS = {
    "cp": "POST /api/copy",
    "create": "POST /api/create",
    "stop": 'POST /api/generate with "keep_alive": 0',
}
_COMMANDS = {
    "serve": _Command("serve:serve", "serve a GGUF model behind the OpenAI API", reads=True),
    "run": _Command("run:serve_and_open", "serve a model and open its page in the browser"),
    "chat": _Command("chat:chat", "talk to a model in the terminal"),
    "batch": _Command("batch:batch", "run a JSONL file of requests without a server"),
    "grammar": _Command("grammar:grammar", "print the grammar of a JSON Schema, or check texts against it"),
    "inspect": _Command(
        "inspect.command:inspect", "show what a model file contains and how it would run here", computes=True
    ),
    "key": _Command("key:key", "make an API key"),
    "list": _Command("models:list_here", "list the models on this machine"),
    "models": _Command("models:models", "list models by name, and whether they fit into memory"),
    "ps": _Command("ps:ps", "list the models that a running server has in memory"),
    "pull": _Command("pull:pull", "download models from the hub"),
    "quantize": _Command("quantize:quantize", "write a smaller model file"),
    "ray": _Command("ray:ray", "serve with replicas, on Ray Serve"),
    "rm": _Command("pull:remove", "remove downloaded models"),
    "tune": _Command("tune.command:tune", "measure the best settings for a model on this machine"),
    "version": _Command("main:version", "print the version"),
}

_EXIT_WRONG_START = 2
_EXIT_INTERRUPTED = 130


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: not every name can be written so
    is_python_default = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    try:
        if is_python_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        for argument in sys.argv[1:]:
            require_utf8(argument, "the argument")
        gc.disable()  # collections would take a tenth of the time of the imports, which stay
        try:
            run = load_command(sys.argv[1:])  # seconds, on a busy machine
        finally:
            gc.freeze()
            gc.enable()
        if is_python_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except StartupError as error:
        print(f"openai-cpu-server: {error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_START)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
