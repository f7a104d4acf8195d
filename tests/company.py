"""What changes for a test that shares its cores with the test of another pytest worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TOLD = "TESTS_HAVE_COMPANY"
HAS_COMPANY = (
    _TOLD in os.environ or "--forks" in sys.argv or os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1"
)  # whether other tests compute at the same time


def share_cores() -> None:
    """Let compute threads sleep where they wait for each other, in this process and in what it starts.

    They would spin, on a core that the other worker's threads need. Call this before ggml and numpy are
    loaded: their libraries read it once. And what leaves the cores to whoever else wants them gets its share:
    the others want them all the time. Processes that this one starts do so by `sitecustomize`.
    """
    if HAS_COMPANY and _TOLD not in os.environ:
        os.environ[_TOLD] = "1"
        paths = (str(Path(__file__).with_name("in_company")), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if HAS_COMPANY and sys.platform == "linux":
        os.SCHED_IDLE = os.SCHED_OTHER
