"""Random kills, as `scripts/chaos.py` makes them, and `scripts/chaos.py --minutes` at its full length."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_parts.batch import run_batch
from chaos_parts.streams import run_streams

from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.slow]


@pytest.mark.timeout(3600)
def test_streams_survive_200_kills(tmp_path: Path) -> None:
    """So long that there is always somebody."""
    asked = {"requests": 500, "kills": 200, "tokens": 96, "clients": 16, "seed": 500}
    figures = asyncio.run(run_streams(tiny_model_path(), tmp_path, **asked))
    assert (figures.kills, figures.is_good) == (200, True), figures


@pytest.mark.timeout(3600)
def test_every_row_of_a_batch_is_there_once_after_50_kills(tmp_path: Path) -> None:
    figures = run_batch(tiny_model_path(), tmp_path, rows=2000, kills=50, tokens=48, seed=2000)
    assert (figures.kills, figures.is_good) == (50, True), figures


@pytest.mark.timeout(1800)
def test_twenty_minutes_of_everything_leave_memory_flat() -> None:
    options = ["--minutes", "20", "--model", str(tiny_model_path())]
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "chaos.py"), *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
