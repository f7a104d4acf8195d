"""A program that looks for a model's file: `resolve_model NAME`, `local_model NAME`, or `sees NAME` for what
the model sees pictures with.

It is a process of its own, because the hub's library reads its settings when it is imported.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from openai_cpu_server import model_source
from openai_cpu_server.errors import StartupError


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    function, name = sys.argv[1:]
    try:
        print(_sees(name) if function == "sees" else getattr(model_source, function)(name))  # noqa: T201
    except StartupError as error:
        sys.exit(f"ERROR {error}")


def _sees(name: str) -> Path | None:
    found = model_source.model_to_serve(name)
    return model_source.projector_of(found.path, "auto", found.hub)


if __name__ == "__main__":
    main()
