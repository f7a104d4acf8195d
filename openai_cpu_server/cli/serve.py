"""`openai-cpu-server serve`: serves as the options say."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.server.run import run_server as serve_with


def serve(arguments: Sequence[str], readers: Sequence[ReaderChild] = ()) -> None:
    """`readers`: reader processes that `main` has started."""
    serve_with(read_settings(arguments), readers)
