"""The start of scripts that run too long for the suite."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from regressions import MEASUREMENTS

from tests.warm import Program, completed

RUNNER = Program(
    "tests.running:main", "httpx", "openai_cpu_server.llama.backend", "openai_cpu_server.config.settings"
)
"""Runs a script; it has imported the modules that most scripts need."""
SCRIPTS = sorted((Path(__file__).parents[2] / "scripts").glob("*.py"))


@pytest.mark.thorough
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_each_script_prints_its_usage(script: Path) -> None:
    done = completed(RUNNER, [str(script), "--help"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name != "page"])
def test_each_measurement_prints_its_usage(name: str) -> None:
    done = completed(RUNNER, [str(SCRIPTS[0].with_name("regress.py")), name, "--help"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: regress.py {name} ")


@pytest.mark.parametrize(
    ("name", "words"),
    [("docs", "[build | serve] [options of zensical]"), ("package", "build | check [FOLDER]")],
)
def test_a_script_refuses_unknown_words(name: str, words: str) -> None:
    script = SCRIPTS[0].with_name(name)
    done = subprocess.run([str(script), "paint"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"usage: scripts/{name} {words}\n")
