"""The page as it is checked in is what its sources make, and names whose work is in it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from openai_cpu_server.page.bundle import BUILT

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "page"
PACKAGES = BUILT.parent / "source" / "package.json"
_NOT_TO_BE_HAD = 3
_TOO_LONG = 124


def run_script(word: str) -> subprocess.CompletedProcess[str]:
    """It fetches what it needs from npm's registry, which may be far away: then the test is skipped."""
    command = ["timeout", "90", SCRIPT, word]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _TOO_LONG:
        pytest.skip("npm does not come to an end")
    return done


def test_what_is_checked_in_is_what_the_sources_make() -> None:
    done = run_script("check")
    if done.returncode in (_NOT_TO_BE_HAD, 127):
        pytest.skip(f"npm or its packages cannot be had: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_the_licence_of_all_that_is_in_it_comes_with_it() -> None:
    licences = (BUILT / "licences.txt").read_text()
    dependencies = json.loads(PACKAGES.read_text())["dependencies"]
    assert [name for name, version in dependencies.items() if f"{name} {version} (" not in licences] == []


def test_no_package_names_a_registry() -> None:
    assert "resolved" not in PACKAGES.with_name("package-lock.json").read_text()
