"""`--forks`: failures, skips, warnings and deaths in forks are reported as without forks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "test_a.py": """
import os, warnings
def test_passes(tmp_path): assert os.getpid() != int(os.environ["PARENT_PID"])
def test_fails():
    print("printed before")
    assert [1] == [2]
""",
    "test_b.py": """
import os, pytest, signal, warnings
def test_skips(): pytest.skip("not here")
def test_warns(): warnings.warn("beware")
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after_the_death(): pass
""",
    "test_c.py": "def test_passes(): pass",
    "test_d.py": """
import os
def test_exits(): os._exit(0)
def test_after_the_exit(): pass
""",
}


@pytest.mark.thorough
def test_failures_skips_warnings_and_deaths_are_reported(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    program = "import os, sys, pytest; os.environ['PARENT_PID'] = str(os.getpid()); sys.exit(pytest.main())"
    options = ("-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider", "-p", "tests.forks")
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program, *options, "--forks", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"3 failed, 3 passed, 1 skipped, 1 warning in ", done.stdout), done.stdout
    assert "FAILED test_a.py::test_fails - assert [1] == [2]" in done.stdout
    assert "printed before" in done.stdout
    assert "FAILED test_b.py::test_dies - the process of the tests ended with -9" in done.stdout
    assert "FAILED test_d.py::test_exits - the process of the tests ended with 0" in done.stdout
    assert "UserWarning: beware" in done.stdout
