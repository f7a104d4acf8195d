"""`openai-cpu-server ps`: a running server's loaded models."""

from __future__ import annotations

import json
from collections.abc import Sequence

from openai_cpu_server.cli.client import LOCAL, ServerClient, add_server_options
from openai_cpu_server.cli.plain_text import bytes_text, columns, printable, show
from openai_cpu_server.config.command_line import CommandParser


def ps(arguments: Sequence[str]) -> None:
    parser = CommandParser("ps", "List the models that a running server has in memory.")
    add_server_options(parser, LOCAL)
    parser.add_argument("--json", action="store_true", help="print the list as JSON, with sizes in bytes")
    options = parser.parse_args(arguments)
    loaded = ServerClient(options.url, options.api_key).get("/api/ps")["models"]
    if options.json:
        show(json.dumps(loaded, indent=2))
        return
    rows = [(printable(model["name"]), bytes_text(model["size"])) for model in loaded]
    show(columns([("name", "memory"), *rows], right=(1,)))
