"""A program that looks for a model's file: `resolve_model NAME` or `local_model NAME`. `projector_of NAME`
looks for the model's projector, and `drafting_file NAME` for its draft model.

It is a process of its own, because the hub's library reads its settings when it is imported.
"""

from __future__ import annotations

import logging
import sys

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source import resolve


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    function, name = sys.argv[1:]
    try:
        find = getattr(resolve, function)
        if function.endswith("_model"):
            print(find(name))  # noqa: T201
        else:
            model = resolve.model_to_serve(name)
            print(find(model.path, "auto", model.hub))  # noqa: T201
    except StartupError as error:
        sys.exit(f"ERROR {error}")


if __name__ == "__main__":
    main()
