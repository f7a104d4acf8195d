"""Runs a module with the kernels in front of ggml: `python -m openai_cpu_server.kernels.front MODULE ...`.

Processes that compute are started through here, the API process is not. Which library ggml's calls reach is
decided when llama_cpp is imported; so this comes before any import of the module.
"""

from __future__ import annotations

import runpy
import sys

from openai_cpu_server.kernels.library import put_in_front


def main() -> None:
    put_in_front()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
