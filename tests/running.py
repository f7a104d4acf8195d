"""A program that runs a script as the Python command does: `PATH ARGUMENT...`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")
