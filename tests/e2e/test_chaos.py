"""Random kills, as `scripts/chaos.py` makes them: a small edition, and the whole one in the slow marker; and
`scripts/chaos.py --minutes` at its full length."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from chaos_parts.batch import run_batch
from chaos_parts.streams import run_streams

from tests.tiny_model import SCRIPTS, tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]


def streams_survive(folder: Path, *, requests: int, kills: int, tokens: int = 48) -> None:
    asked = {"requests": requests, "kills": kills, "tokens": tokens, "clients": 16, "seed": requests}
    figures = asyncio.run(run_streams(tiny_model_path(), folder, **asked))
    assert figures.kills == kills, figures
    assert figures.is_good, figures


def rows_survive(folder: Path, *, rows: int, kills: int) -> None:
    figures = run_batch(tiny_model_path(), folder, rows=rows, kills=kills, tokens=48, seed=rows)
    assert figures.kills == kills, figures
    assert figures.is_good, figures


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_streams_survive_200_kills(tmp_path: Path) -> None:
    streams_survive(tmp_path, requests=500, kills=200, tokens=96)  # so long that there is always somebody


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_row_of_a_batch_is_there_once_after_50_kills(tmp_path: Path) -> None:
    rows_survive(tmp_path, rows=2000, kills=50)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_minutes_of_everything_leave_memory_flat() -> None:
    command = [
        sys.executable,
        str(SCRIPTS / "chaos.py"),
        "--minutes",
        "20",
        "--model",
        str(tiny_model_path()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
