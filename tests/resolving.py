"""A program that looks for a model's file: `resolve_model NAME` or `local_model NAME`.

It is a process of its own, because the hub's library reads its settings when it is imported.
"""

from __future__ import annotations

import logging
import sys

from openai_cpu_server import model_source
from openai_cpu_server.errors import StartupError


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    function, name = sys.argv[1:]
    try:
        print(getattr(model_source, function)(name))  # noqa: T201
    except StartupError as error:
        sys.exit(f"ERROR {error}")


if __name__ == "__main__":
    main()
