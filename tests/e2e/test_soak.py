"""`scripts/chaos.py --minutes` at its full length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_model import tiny_model_path

CHAOS = Path(__file__).parents[2] / "scripts" / "chaos.py"


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.timeout(1800)
def test_twenty_minutes_of_everything_leave_memory_flat() -> None:
    done = subprocess.run(
        [sys.executable, str(CHAOS), "--minutes", "20", "--model", str(tiny_model_path())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
