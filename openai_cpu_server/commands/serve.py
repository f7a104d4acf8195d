"""`openai-cpu-server serve`: serves as the options say."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.app import serve as serve_with
from openai_cpu_server.config.command_line import read_settings
from openai_cpu_server.reader.child import ReaderChild


def serve(arguments: Sequence[str], readers: Sequence[ReaderChild] = ()) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises StartupError with one line if the server cannot start.

    `readers`: processes that have been started already, to read texts.
    """
    serve_with(read_settings(arguments), readers)
