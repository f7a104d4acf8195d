"""A program that looks for a model's file: `resolve_model NAME`, `local_model NAME`, or `projector_of NAME`
and `drafting_file NAME` for what the model sees pictures with, and what drafts for it.

It is a process of its own, because the hub's library reads its settings when it is imported.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source import resolve


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    function, name = sys.argv[1:]
    try:
        found = getattr(resolve, function)
        print(found(name) if function.endswith("_model") else _beside(found, name))  # noqa: T201
    except StartupError as error:
        sys.exit(f"ERROR {error}")


def _beside(find: Callable[..., Path | None], name: str) -> Path | None:
    found = resolve.model_to_serve(name)
    return find(found.path, "auto", found.hub)


if __name__ == "__main__":
    main()
