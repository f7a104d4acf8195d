"""The command line. It imports little, because Ctrl-C during imports must not show a traceback."""

from __future__ import annotations

import contextlib
import gc
import io
import signal
import sys
from collections.abc import Iterator

from openai_cpu_server.commands.table import load
from openai_cpu_server.errors import StartupError
from openai_cpu_server.user_folders import require_utf8

_EXIT_WRONG_START = 2
_EXIT_INTERRUPTED = 130


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does: not every name can be written so
    is_python_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_python_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        for argument in sys.argv[1:]:
            require_utf8(argument, "the argument")
        with _imports_kept():
            run = load(sys.argv[1:])  # seconds, on a busy machine
        if is_python_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except StartupError as error:
        print(f"openai-cpu-server: {error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_START)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)


@contextlib.contextmanager
def _imports_kept() -> Iterator[None]:
    """Import without garbage collection, which would take a tenth of that
    time, and exempt what was made for good."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
