"""The unit of systemd."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import ROOT

UNIT = ROOT / "deploy" / "systemd" / "openai-cpu-server.service"
_MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts; it calls less than 2 "OK"."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_systemd_understands_it(tmp_path: Path) -> None:
    """The program is not installed there; any other will do."""
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text().replace("/opt/openai-cpu-server/bin/openai-cpu-server serve", "/bin/true")
    )
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_it_may_do_little() -> None:
    limit = str(int(_MOST_EXPOSED * 10))
    done = analyze("security", "--offline=true", f"--threshold={limit}", str(UNIT))
    assert done.returncode == 0, done.stdout
