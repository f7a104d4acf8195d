"""Nothing is skipped in continuous integration but what `tests/skips.py` names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.skips import MAY_BE_SKIPPED
from tests.warm import Program, completed

ROOT = Path(__file__).parents[2]
PYTEST = Program("pytest:console_main", "_pytest.assertion.rewrite", "_pytest.terminal", "_pytest.skipping")
LISTED = "tests/structured/test_maskbench.py"
SKIPS = """
import pytest
def test_that_skips(): pytest.skip("there is no such server here")
"""
SKIPS_ALL = 'import pytest\npytest.importorskip("no_such_library")'
FAILS_AS_EXPECTED = "import pytest\n@pytest.mark.xfail\ndef test_that_fails(): assert False"
PASSES = "def test_that_passes(): pass"


def run(folder: Path, content: str, *, ci: str = "true", file: str = "test_it.py") -> tuple[int, str]:
    """A suite of one file, and one that passes; returns the exit code and what was said."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(content)
    (folder / "test_other.py").write_text(PASSES)
    options = ("-p", "tests.skips", "-c", os.devnull, "--rootdir", str(folder), "--import-mode", "importlib")
    env = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = completed(PYTEST, ["-p", "no:cacheprovider", *options, str(folder)], env=env)
    return done.returncode, done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "reason"), [(SKIPS, "there is no such server here"), (SKIPS_ALL, "No module named")]
)
def test_a_skip_fails_with_its_reason(tmp_path: Path, content: str, reason: str) -> None:
    code, said = run(tmp_path, content)
    assert code != 0
    assert "does not allow" in said
    assert reason in said


@pytest.mark.thorough
def test_at_home_skips_are_fine(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPS, ci="")[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("content", [SKIPS, SKIPS_ALL])
def test_what_is_named_may_be_skipped(tmp_path: Path, content: str) -> None:
    code, said = run(tmp_path, content, file=LISTED)
    assert (code, "1 skipped" in said) == (0, True)


@pytest.mark.thorough
def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    code, said = run(tmp_path, FAILS_AS_EXPECTED)
    assert (code, "1 xfailed" in said) == (0, True)


def test_the_list_names_files_that_exist() -> None:
    assert [file for file in MAY_BE_SKIPPED if not (ROOT / file).exists()] == []
