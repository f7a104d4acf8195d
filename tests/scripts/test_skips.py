"""In continuous integration only the tests of `tests/skips.py` may be skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.skips import MAY_BE_SKIPPED
from tests.warm import Program, completed

ROOT = Path(__file__).parents[2]
PYTEST = Program("pytest:console_main", "_pytest.assertion.rewrite", "_pytest.terminal", "_pytest.skipping")
LISTED = "tests/structured/test_maskbench.py"
SKIPS = 'import pytest\ndef test_that_skips(): pytest.skip("there is no such server here")'
SKIPS_ALL = 'import pytest\npytest.importorskip("no_such_library")'
FAILS_AS_EXPECTED = "import pytest\n@pytest.mark.xfail\ndef test_that_fails(): assert False"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("content", "ci", "file", "fails", "line"),
    [
        (SKIPS, "true", "test_it.py", True, "there is no such server here"),
        (SKIPS_ALL, "true", "test_it.py", True, "No module named"),
        (SKIPS, "", "test_it.py", False, "1 skipped"),  # on a developer's machine
        (SKIPS, "true", LISTED, False, "1 skipped"),
        (SKIPS_ALL, "true", LISTED, False, "1 skipped"),
        (FAILS_AS_EXPECTED, "true", "test_it.py", False, "1 xfailed"),
    ],
)
def test_a_skip_fails_with_its_reason_unless_it_may_be_skipped(
    tmp_path: Path, content: str, ci: str, file: str, fails: bool, line: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    (tmp_path / "test_other.py").write_text("def test_that_passes(): pass")
    plugins = ("-p", "tests.skips", "-p", "no:cacheprovider", "--import-mode", "importlib")
    env = {**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    folder = str(tmp_path)
    done = completed(PYTEST, [*plugins, "-c", os.devnull, "--rootdir", folder, folder], env=env)
    assert (done.returncode != 0) is fails, done.stdout
    assert line in done.stdout
    assert ("does not allow" in done.stdout) is fails


def test_the_list_names_files_that_exist() -> None:
    assert [file for file in MAY_BE_SKIPPED if not (ROOT / file).exists()] == []
