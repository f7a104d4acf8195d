"""`python -m openai_cpu_server` is the command `openai-cpu-server`. Until its import Ctrl-C ends the process
without a traceback, so nothing is imported before."""

import pkgutil
import signal


def main() -> None:
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        pkgutil.resolve_name("openai_cpu_server.cli.main:main")()
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
