"""Scripts that run for minutes are not run in the suite: here they at least start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from regressions import MEASUREMENTS

from tests.warm import Program, completed

RUNNER = Program(
    "tests.running:main", "httpx", "openai_cpu_server.llama.backend", "openai_cpu_server.config.settings"
)
"""With what most of them import."""
SCRIPTS = sorted((Path(__file__).parents[2] / "scripts").glob("*.py"))


@pytest.mark.thorough
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_each_script_says_how_it_is_used(script: Path) -> None:
    done = completed(RUNNER, [str(script), "--help"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in MEASUREMENTS if name != "page"])
def test_each_measurement_says_how_it_is_used(name: str) -> None:
    done = completed(RUNNER, [str(SCRIPTS[0].with_name("regress.py")), name, "--help"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: regress.py {name} ")


@pytest.mark.parametrize(
    ("name", "words"),
    [("docs", "[build | serve] [options of zensical]"), ("package", "build | check [FOLDER]")],
)
def test_few_words_are_known(name: str, words: str) -> None:
    script = SCRIPTS[0].with_name(name)
    done = subprocess.run([str(script), "paint"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"usage: scripts/{name} {words}\n")
