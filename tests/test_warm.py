"""Processes of `tests/warm.py` end with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import DEADLINE_S

_STARTER = """
import sys
from tests.warm import Program, WarmProcess

process = WarmProcess(Program("tests.test_warm:wait_for_a_signal"), [], stdout=1, stderr=2)
print(process.pid, flush=True)
sys.stdin.read()
"""


def wait_for_a_signal() -> None:
    signal.pause()


def test_a_warm_process_ends_when_its_starter_is_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        started = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
        # the pipe ends when no process holds it: neither the started process nor its parent
        assert starter.stdout.read() == ""
    started.wait(timeout=DEADLINE_S)
