"""`openai-cpu-server serve`: serves as the options say."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from openai_cpu_server.config.command_line import words_and_options
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.server.run import run_server as serve_with


def serve(
    arguments: Sequence[str],
    reader: ReaderChild | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve `--model` and the models that the first words name. `on_listening` gets the URL."""
    models, options = words_and_options(arguments)
    settings = read_settings([*(f"--model={model}" for model in models), *options])
    if settings.url_fd is not None:
        on_listening = partial(_send, settings.url_fd)
    serve_with(settings, reader, on_listening)


def _send(descriptor: int, url: str) -> None:
    with os.fdopen(descriptor, "w", encoding="ascii") as pipe:
        pipe.write(url)
