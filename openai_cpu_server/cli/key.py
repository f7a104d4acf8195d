"""`openai-cpu-server key NAME`: makes an API key and its lines for the file of keys."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.cli.plain_text import say, show
from openai_cpu_server.errors import StartupError
from openai_cpu_server.http.keys import new_key

_USAGE = "usage: openai-cpu-server key NAME"
_HELP = f"""{_USAGE}

Make a random API key. It is shown once, on standard error; on standard output are the lines for the file of
--api-keys."""


def key(arguments: Sequence[str]) -> None:
    if len(arguments) == 1 and arguments[0] in ("-h", "--help"):
        show(_HELP)
        return
    if len(arguments) != 1:
        raise StartupError(_USAGE)
    made, lines = new_key(arguments[0])
    say(f"{arguments[0]}'s key, shown this once: {made}")  # not into the file that `>>` adds the lines to
    show(lines)
