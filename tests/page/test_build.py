"""The checked-in page is what its sources build, and has the licences of its dependencies."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from openai_cpu_server.page.bundle import BUILT

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "page"
PACKAGES = BUILT.parent / "source" / "package.json"
_UNAVAILABLE = 3
_TIMED_OUT = 124


def run_script(action: str) -> subprocess.CompletedProcess[str]:
    """Run the script; skip the test if npm's registry is too slow."""
    command = ["timeout", "90", SCRIPT, action]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == _TIMED_OUT:
        pytest.skip("npm does not come to an end")
    return done


def test_the_checked_in_page_is_what_its_sources_build() -> None:
    done = run_script("check")
    if done.returncode in (_UNAVAILABLE, 127):
        pytest.skip(f"npm or its packages cannot be had: {done.stderr}")
    assert done.returncode == 0, done.stderr


def test_the_page_has_the_licences_of_its_dependencies() -> None:
    licences = (BUILT / "licences.txt").read_text()
    dependencies = json.loads(PACKAGES.read_text())["dependencies"]
    assert [name for name, version in dependencies.items() if f"{name} {version} (" not in licences] == []


def test_no_package_names_a_registry() -> None:
    assert "resolved" not in PACKAGES.with_name("package-lock.json").read_text()
