"""The command line. Light, for Ctrl-C while the rest is imported must not show a traceback."""

from __future__ import annotations

import importlib
import signal
import sys

from openai_cpu_server.errors import StartupError

_EXIT_WRONG_START = 2
_EXIT_INTERRUPTED = 130


def main() -> None:
    is_python_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_python_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    commands = importlib.import_module("openai_cpu_server.commands")  # seconds, on a busy machine
    try:
        if is_python_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        commands.run(sys.argv[1:])
    except StartupError as error:
        print(f"openai-cpu-server: {error}", file=sys.stderr)
        sys.exit(_EXIT_WRONG_START)
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
