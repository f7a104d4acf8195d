"""Runs programs in forks of a process that has imported what they import. A server then costs a second less.

All else is as with `python -m openai_cpu_server`, which some tests start for its own sake: a fork is a
process of its own, with an engine and readers of its own, which are forks too (`tests/warm_children.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.waiting import DEADLINE_S

_ROOT = Path(__file__).parents[1]


class Program:
    """A function without arguments that reads `sys.argv`, and may return an exit code.

    Each pytest worker has one process that forks.
    """

    def __init__(self, entry: str, *imports: str) -> None:
        """`entry`: MODULE:FUNCTION. `imports`: the modules that every run finds imported."""
        self.entry = entry
        self.imports = imports

    @functools.cached_property
    def parent(self) -> socket.socket:
        """Starts the process that forks; it goes with this one."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_parent", str(theirs.fileno()), self.entry, *self.imports],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


OURS = Program("tests.warm_children:main", "tests.warm_children", "openai_cpu_server.cli.serve")
"""The command line."""
BESIDE_SERVERS = "forks children"
"""The name of the process that each server has beside it here: `tests/warm_children.py`."""


class WarmProcess:
    """A program that runs in this process's folder; as `subprocess.Popen`."""

    def __init__(
        self,
        program: Program,
        arguments: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """It says what it says into these files. `env`: None is this process's."""
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._end, theirs = socket.socketpair()
        env = dict(os.environ if env is None else env)
        asked = {"arguments": self.args, "env": env, "folder": str(Path.cwd())}
        with theirs:
            files = [theirs.fileno(), stdout, stderr]
            socket.send_fds(program.parent, [json.dumps(asked).encode()], files)
        self._said = self._end.makefile("rb")
        self.pid = int(self._said.readline())

    def poll(self) -> int | None:
        """The exit code; None while it lives."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._said.readline())
            self._said.close()
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def end(self) -> str:
        """What it has still to say, once it has ended by itself."""
        assert self.stdout is not None
        with self.stdout:
            said = self.stdout.read()
        self.wait(timeout=DEADLINE_S)
        return said

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: str, env: Mapping[str, str] | None = None) -> WarmProcess:
    """`openai-cpu-server ARGUMENTS`. Its `stdout` has what it says, on stderr too."""
    ours, theirs = os.pipe()
    process = WarmProcess(OURS, arguments, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    process.stdout = os.fdopen(ours, encoding="utf-8")
    return process


def run(
    *arguments: str, env: Mapping[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """`openai-cpu-server ARGUMENTS`, until it ends by itself. Raises `subprocess.TimeoutExpired`."""
    return completed(OURS, arguments, env=env, timeout_s=timeout)


def completed(
    program: Program, arguments: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Raises `subprocess.TimeoutExpired`."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = WarmProcess(program, arguments, stdout=stdout.fileno(), stderr=stderr.fileno(), env=env)
        try:
            code = process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        for said in (stdout, stderr):
            said.seek(0)
        return subprocess.CompletedProcess(process.args, code, stdout.read(), stderr.read())
