"""The server with a monitor of its event loop: `python -m tests.loop_watch serve ...`.

Each callback that takes more than 50 ms of the loop's CPU time is printed on a line of its own. CPU time does
not include other processes and threads, however loaded the machine is.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import time
from asyncio import Handle

LONGEST_S = 0.05
MARK = "the event loop stood still"


def _run_measured(handle: Handle) -> None:
    started_s = time.thread_time()
    _run(handle)
    spent_s = time.thread_time() - started_s
    if spent_s > LONGEST_S:
        sys.stdout.write(f"{MARK}: {spent_s:.3f} s in {handle!r}\n")
        sys.stdout.flush()


_run = asyncio.Handle._run

if __name__ == "__main__":
    asyncio.Handle._run = _run_measured  # type: ignore[method-assign]
    runpy.run_module("openai_cpu_server", run_name="__main__", alter_sys=True)
