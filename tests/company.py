"""Settings of tests that share their cores with the tests of other pytest workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_VARIABLE = "TESTS_HAVE_COMPANY"
HAS_COMPANY = (
    _VARIABLE in os.environ
    or "--forks" in sys.argv
    or os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1"
)  # whether other tests compute at the same time


def share_cores() -> None:
    """Let compute threads sleep where they wait for each other, in this process and in what it starts.

    They would spin, on a core that the other worker's threads need. Call this before ggml and numpy are
    loaded: their libraries read the variables once. Threads with the policy SCHED_IDLE get SCHED_OTHER,
    because the other workers compute all the time. Child processes do the same by `sitecustomize`.
    """
    if HAS_COMPANY and _VARIABLE not in os.environ:
        os.environ[_VARIABLE] = "1"
        paths = (str(Path(__file__).with_name("in_company")), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if HAS_COMPANY and sys.platform == "linux":
        os.SCHED_IDLE = os.SCHED_OTHER
