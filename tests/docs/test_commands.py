"""The commands of the README and the manual run with nothing but the package installed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from check_install import EXCLUDED, commands, prepare, reason_against, run_command

from tests.docs.markdown import ROOT
from tests.server_process import ServerProcess

RUN = [(page, command) for page, command in commands() if reason_against(command) is None]


def test_commands_are_bash_and_excluded_ones_have_a_reason() -> None:
    texts = [command for _, command in commands() if not command.startswith("for ")]
    checked = subprocess.run(["bash", "-n"], input="\n".join(texts), text=True, capture_output=True)
    assert checked.stderr == ""
    assert [pattern for pattern, _ in EXCLUDED if not any(re.search(pattern, text) for text in texts)] == []
    assert {page for page, _ in RUN} >= {"README.md", "start.md", "models.md", "api.md", "usage.md"}


def test_a_reason_names_tests_that_exist() -> None:
    paths = [name for _, reason in EXCLUDED for name in re.findall(r"tests/[\w/]+(?:\.py)?", reason)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    home = tmp_path_factory.mktemp("home")
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}


@pytest.mark.native
@pytest.mark.slow
def test_commands_run(
    environment: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all commands against one server, in the order of the pages: later ones use earlier results."""
    for name, folder in environment.items():
        monkeypatch.setenv(name, folder)
    prepare(tmp_path)
    with ServerProcess("--model", "demo", "--jobs-db", "sqlite://") as server:
        for page, command in RUN:
            run_command(page, command, Path(sys.executable), server.url, tmp_path)
