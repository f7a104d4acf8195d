"""The unit of systemd."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy import ROOT

UNIT = ROOT / "deploy" / "systemd" / "openai-cpu-server.service"


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """The program is not installed here, so another one takes its place."""
    unit = tmp_path / UNIT.name
    unit.write_text(
        UNIT.read_text().replace("/opt/openai-cpu-server/bin/openai-cpu-server serve", "/bin/true")
    )
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_has_few_rights() -> None:
    """The exposure is at most 2 of 10; `systemd-analyze security` calls less than 2 "OK"."""
    done = analyze("security", "--offline=true", "--threshold=20", str(UNIT))
    assert done.returncode == 0, done.stdout
