"""What changes for a test that shares its cores with the test of another pytest worker."""

from __future__ import annotations

import os
import sys

HAS_COMPANY = "--forks" in sys.argv or os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") != "1"
"""Whether other tests compute at the same time."""


def share_cores() -> None:
    """Let compute threads sleep where they wait for each other, in this process and in what it starts.

    They would spin, on a core that the other worker's threads need. Call this before ggml and numpy are
    loaded: their libraries read it once.
    """
    if HAS_COMPANY:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
