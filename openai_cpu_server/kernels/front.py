"""Runs the `main` of a module with the kernels in front of ggml: `python -m openai_cpu_server.kernels.front
MODULE ...`.

Importing llama_cpp decides which library ggml's calls reach.
"""

from __future__ import annotations

import gc
import importlib
import sys

from openai_cpu_server.kernels.library import put_in_front


def main() -> None:
    put_in_front()
    del sys.argv[0]
    gc.disable()  # it would take a tenth of the time of imports, and find nothing
    module = importlib.import_module(sys.argv[0])
    gc.freeze()
    gc.enable()
    module.main()


if __name__ == "__main__":
    main()
