"""scripts/test passes its arguments to pytest. Set-up, lint and Python are stand-ins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder in ("scripts", ".venv/bin", "tests/llama", "tests/e2e"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "tests/e2e/test_keys.py").touch()
    shutil.copy(ROOT / "scripts/test", tmp_path / "scripts")
    for name in ("scripts/bootstrap", "scripts/lint", ".venv/bin/python"):
        (tmp_path / name).write_text("#!/bin/bash\n[[ $0 != *python ]] || printf '%s\\n' \"$@\"\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ("llama", "tests/llama"),
        ("-k llama", "-k llama"),
        ("-m slow llama", "-m slow tests/llama"),
        ("-x llama", "-x tests/llama"),
        ("e2e/test_keys.py::test_x --lf llama", "tests/e2e/test_keys.py::test_x --lf tests/llama"),
        ("tests/llama nothing::test_x", "tests/llama nothing::test_x"),
    ],
)
def test_rooms_files_and_nodes_are_found_in_the_folder_of_tests(
    checkout: Path, arguments: str, passed_on: str
) -> None:
    command = [checkout / "scripts/test", *arguments.split()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    words = done.stdout.split()
    assert words[words.index("-rfE") + 1 :] == passed_on.split()
