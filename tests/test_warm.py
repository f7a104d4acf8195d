"""Processes of `tests/warm.py` go with the process that asked for them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import DEADLINE_S

_ASKS = """
import sys
from tests.warm import Program, WarmProcess

process = WarmProcess(Program("tests.test_warm:lasts"), [], stdout=1, stderr=2)
print(process.pid, flush=True)
sys.stdin.read()
"""


def lasts() -> None:
    signal.pause()


def test_what_was_started_ends_when_its_tests_are_killed() -> None:
    asking = subprocess.Popen(
        [sys.executable, "-c", _ASKS],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with asking:
        started = psutil.Process(int(asking.stdout.readline()))
        asking.kill()
        # the pipe is at its end when nobody holds it any more: neither the started process nor its parent
        assert asking.stdout.read() == ""
    started.wait(timeout=DEADLINE_S)
