"""`openai-cpu-server serve`: what the options say, served."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.app import serve as serve_with
from openai_cpu_server.settings import read_settings


def serve(arguments: Sequence[str]) -> None:
    """Until Ctrl-C or SIGTERM. Raises StartupError with one line if that cannot begin."""
    serve_with(read_settings(arguments))
