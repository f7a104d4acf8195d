"""An engine process with the fake backend: `python -m tests.fake_engine [KEY=VALUE ...] FD`.

The tests start hundreds. Each takes a sixth less time without garbage collection during its imports and
without an orderly end of Python.
"""

from __future__ import annotations

import gc
import os
import pkgutil
import sys

COMMAND = (sys.executable, "-m", "tests.fake_engine")


def main() -> None:
    gc.disable()
    run = pkgutil.resolve_name("tests.fake_engine_process:main")
    gc.freeze()
    gc.enable()
    run()
    os._exit(0)


if __name__ == "__main__":
    main()
