"""Run programs in forks of a process that has imported their modules. A server then starts a second sooner.

The server's engine and readers import for themselves, as for a user. The process that forks is
`python -m tests.warm FD ENTRY MODULE...`: it forks once for each request on the socket FD.
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
    """A function without parameters that reads `sys.argv`; one process of each pytest worker forks for it."""

    def __init__(self, entry: str, *imports: str) -> None:
        """`entry`: MODULE:FUNCTION. `imports`: modules that are imported once, before the forks."""
        self.entry = entry
        self.imports = imports

    @functools.cached_property
    def parent(self) -> socket.socket:
        """Start the process that forks; it ends with this one."""
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
    """A program that runs in this process's folder; used like `subprocess.Popen`."""

    def __init__(
        self,
        program: Program,
        arguments: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env`: None means this process's environment."""
        self.args = list(arguments)
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._sock, theirs = socket.socketpair()
        request = {
            "arguments": self.args,
            "env": dict(os.environ if env is None else env),
            "folder": str(Path.cwd()),
        }
        with theirs:
            socket.send_fds(program.parent, [json.dumps(request).encode()], [theirs.fileno(), stdout, stderr])
        self._reports = self._sock.makefile("rb")
        self.pid = int(self._reports.readline())

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._sock], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._reports.readline())
            self._reports.close()
            self._sock.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended in between
                os.kill(self.pid, number)

    def end(self) -> str:
        """Wait for the program to end by itself, and return the rest of its output."""
        with self.stdout:
            output = self.stdout.read()
        self.wait(timeout=DEADLINE_S)
        return output

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(*arguments: str, env: Mapping[str, str] | None = None) -> WarmProcess:
    """Start `openai-cpu-server ARGUMENTS`, whose `stdout` carries its stderr too."""
    ours, theirs = os.pipe()
    process = WarmProcess(OURS, arguments, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    process.stdout = os.fdopen(ours, encoding="utf-8")
    return process


def run(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `openai-cpu-server ARGUMENTS` to its end. Raises `subprocess.TimeoutExpired`."""
    return completed(OURS, arguments, env=env)


def completed(
    program: Program, arguments: Sequence[str], *, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end. Raises `subprocess.TimeoutExpired`."""
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
    """Import, fork for each request, and end with the socket. Programs that still run then end too."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    entry = pkgutil.resolve_name(name)
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children that wait
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
    """End with the parent, also if the parent died before this call."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _fork_and_wait(files: Sequence[int]) -> None:
    """Return in the child, whose output goes to the last two files. The first gets its pid and exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status_file, *output = files
    waiter = os.getpid()
    if pid := os.fork():
        for file in output:
            os.close(file)
        os.write(status_file, b"%d\n" % pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(OSError):  # the waiting test has ended
            os.write(status_file, b"%d\n" % code)
        os._exit(0)
    _die_with(waiter)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 does not do so
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(output, start=1):
        os.dup2(file, number)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3:])
