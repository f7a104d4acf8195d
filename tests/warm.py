"""Runs programs in forks of a process that has imported what they import. A server then costs a second less.

Its engine and its readers import for themselves, as for a user. `python -m tests.warm FD ENTRY MODULE...` is
the process that forks, for each request that comes on the socket FD.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from openai_cpu_server.child_processes.signals import die_with_parent
from tests.waiting import DEADLINE_S

_ROOT = Path(__file__).parents[1]
_REQUEST_BYTES = 1 << 20


class Program:
    """A function without arguments that reads `sys.argv`; one process of each pytest worker forks it."""

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
                [sys.executable, "-m", "tests.warm", str(theirs.fileno()), self.entry, *self.imports],
                pass_fds=[theirs.fileno()],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
            )

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


OURS = Program("openai_cpu_server.cli.main:main", "openai_cpu_server.cli.serve")  # the command line


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
        """`env`: None is this process's."""
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._end, theirs = socket.socketpair()
        request = {
            "arguments": self.args,
            "env": dict(os.environ if env is None else env),
            "folder": str(Path.cwd()),
        }
        with theirs:
            socket.send_fds(program.parent, [json.dumps(request).encode()], [theirs.fileno(), stdout, stderr])
        self._numbers = self._end.makefile("rb")
        self.pid = int(self._numbers.readline())

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
            self.returncode = int(self._numbers.readline())
            self._numbers.close()
            self._end.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def end(self) -> str:
        """Return the rest of its output, once it has ended by itself."""
        with self.stdout:
            output = self.stdout.read()
        self.wait(timeout=DEADLINE_S)
        return output

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: str, env: Mapping[str, str] | None = None) -> WarmProcess:
    """`openai-cpu-server ARGUMENTS`. Its `stdout` has what it says, on stderr too."""
    ours, theirs = os.pipe()
    process = WarmProcess(OURS, arguments, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    process.stdout = os.fdopen(ours, encoding="utf-8")
    return process


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`openai-cpu-server ARGUMENTS`, until it ends by itself. Raises `subprocess.TimeoutExpired`."""
    return completed(OURS, arguments, env=env)


def completed(
    program: Program, arguments: Sequence[str], *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Raises `subprocess.TimeoutExpired`."""
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = WarmProcess(program, arguments, stdout=stdout.fileno(), stderr=stderr.fileno(), env=env)
        try:
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()
        for output in (stdout, stderr):
            output.seek(0)
        return subprocess.CompletedProcess(process.args, code, stdout.read(), stderr.read())


# -- the process that forks ----------------------------------------------------------------------------


def main(control: socket.socket, name: str, modules: Sequence[str]) -> None:
    """Import, fork for each request, and end with the socket. Programs that still run end then too."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    entry = pkgutil.resolve_name(name)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the children that wait
    is_parent, parent = True, os.getpid()
    while is_parent:
        message, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
        if not message:
            return
        is_parent = os.fork() != 0
        for file in files if is_parent else ():
            os.close(file)
    control.close()
    _die_with(parent)
    _fork_and_wait(files)
    request: dict[str, Any] = json.loads(message)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.chdir(request["folder"])
    sys.argv[1:] = request["arguments"]
    sys.exit(entry())


def _die_with(parent: int) -> None:
    """End with the parent, also if it has died before the kernel heard of that wish."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _fork_and_wait(files: Sequence[int]) -> None:
    """Return in the child, which writes into the last two files. The first gets its number and exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waiting, *output = files
    waiter = os.getpid()
    if pid := os.fork():
        for file in output:
            os.close(file)
        os.write(waiting, b"%d\n" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):  # nobody waits any more
            os.write(waiting, b"%d\n" % code)
        os._exit(0)
    _die_with(waiter)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 does not
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(output, start=1):
        os.dup2(file, number)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
