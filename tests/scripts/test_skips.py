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
    ("content", "more", "code", "said"),
    [
        (SKIPS, {}, 1, "there is no such server here"),
        (SKIPS_ALL, {}, 1, "No module named"),
        (SKIPS, {"ci": ""}, 0, "1 skipped"),  # at home
        (SKIPS, {"file": LISTED}, 0, "1 skipped"),
        (SKIPS_ALL, {"file": LISTED}, 0, "1 skipped"),
        (FAILS_AS_EXPECTED, {}, 0, "1 xfailed"),
    ],
)
def test_a_skip_fails_with_its_reason_unless_it_may_be_skipped(
    tmp_path: Path, content: str, more: dict[str, str], code: int, said: str
) -> None:
    found, told = run(tmp_path, content, **more)
    assert (found != 0) == (code != 0), told
    assert said in told
    assert ("does not allow" in told) == (code != 0)


def test_the_list_names_files_that_exist() -> None:
    assert [file for file in MAY_BE_SKIPPED if not (ROOT / file).exists()] == []
