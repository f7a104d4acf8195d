"""Run a command in this process, as the command line would."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from openai_cpu_server.cli.main import main


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str

    @property
    def refusal(self) -> str:
        """The single line with the reason of a refusal."""
        assert (self.returncode, self.stdout) == (2, "")
        (line,) = self.stderr.splitlines()
        return line

    @property
    def good(self) -> Outcome:
        """This outcome, which must be a success without a warning."""
        assert (self.returncode, self.stderr) == (0, "")
        return self


Run = Callable[..., Outcome]


def runner(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs the command with its arguments."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["openai-cpu-server", command, *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as error:
            code = error.code
        assert isinstance(code, int)
        return Outcome(code, *capsys.readouterr())

    return run
