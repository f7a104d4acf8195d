"""The command line, whose readers and engines are forks too, of a process that has imported what they import.

Each server has such a process beside it. It forks twice, and the one between ends: whom it leaves goes to the
server, which collects orphans. So readers and engines are the server's own children, as they are for a user,
and only `python -m` has not run for them. What a test starts with `is_fresh` has none of this.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from openai_cpu_server.child_processes.signals import die_with_parent
from openai_cpu_server.child_processes.spawn import child_environment
from openai_cpu_server.cli.main import main as command_line
from openai_cpu_server.config.folders import tune_engines
from openai_cpu_server.kernels.library import put_in_front
from tests.company import share_cores
from tests.warm import BESIDE_SERVERS

NAMES = {"openai_cpu_server.kernels.front": "engine", "openai_cpu_server.reader.process": "reader"}
"""The modules that run in forks, and how such a process is called."""
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_REQUEST_BYTES = 1 << 17
_READ_AT_START = ("GGML_", "GOMP_", "KMP_", "LD_", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON")
"""Beginnings of variables that libraries and Python read when they are loaded, and not again."""

share_cores()
tune_engines()
put_in_front()  # before the first import of ggml
for _module in ("openai_cpu_server.engine.process", *NAMES):
    importlib.import_module(_module)


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in child_environment(env).items() if name.startswith(_READ_AT_START)}


_LOADED_WITH = _read_at_start(os.environ)


def main() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.getpid()
    if os.fork() == 0:
        ours.close()
        _at_once(functools.partial(_run, _forked_for(theirs, server)))
    theirs.close()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _Popen.asks = ours
    subprocess.Popen = _Popen  # type: ignore[misc]
    asyncio.create_subprocess_exec = _start  # type: ignore[assignment]
    _at_once(command_line)


def _at_once(run: Callable[[], None]) -> NoReturn:
    """Python would free all that was imported, one object after the other, and first copy its pages."""
    code: object = 0
    try:
        run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _is_forked(command: Sequence[str], env: Mapping[str, str] | None) -> bool:
    return (
        tuple(command[:2]) == (sys.executable, "-m")
        and command[2] in NAMES
        and env is not None
        and _read_at_start(env) == _LOADED_WITH
    )


class _Asked(NamedTuple):
    module: str
    arguments: list[str]
    """Behind them comes the number of the socket."""
    env: dict[str, str]


class _Popen(subprocess.Popen[Any]):
    asks: socket.socket
    turn = threading.Lock()

    def _execute_child(  # type: ignore[override]
        self,
        args: Sequence[str],
        executable: object,
        preexec_fn: object,
        close_fds: object,
        pass_fds: Sequence[int],
        cwd: object,
        env: Mapping[str, str] | None,
        *rest: Any,
    ) -> None:
        pipes = rest[3:9]
        speaks_elsewhere = (pipes[3], pipes[5]) != (-1, -1)
        if speaks_elsewhere or not _is_forked(args, env):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest
            )
            return
        asked = json.dumps(_Asked(args[2], list(args[3:-1]), dict(env or {})))
        with self.turn:
            socket.send_fds(self.asks, [asked.encode()], list(pass_fds))
            self.pid = int(self.asks.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


_start_python = asyncio.create_subprocess_exec


async def _start(*command: str, **options: Any) -> asyncio.subprocess.Process | _Child:
    """uvloop's way to start processes does not lead through `subprocess`."""
    if _is_forked(command, options.get("env")):
        return _Child(_Popen(command, **options))
    return await _start_python(*command, **options)


class _Child:
    """As much of `asyncio.subprocess.Process` as our code uses."""

    def __init__(self, process: _Popen) -> None:
        self.pid, self.kill = process.pid, process.kill
        self.returncode: int | None = None
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        self._watched = os.pidfd_open(process.pid)
        self._loop.add_reader(self._watched, self._has_ended)

    def _has_ended(self) -> None:
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        self.returncode = self._process.wait()
        self._end.set_result(self.returncode)

    async def wait(self) -> int:
        return int(await asyncio.shield(self._end))


def _forked_for(control: socket.socket, server: int) -> tuple[_Asked, int]:
    """Returns in each child, with its socket."""
    die_with_parent()
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(BESIDE_SERVERS.encode()))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        said, (*files,), _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
        if not said:
            os._exit(0)
        if (between := os.fork()) == 0:
            gone = os.pidfd_open(os.getpid())
            if os.fork():
                os._exit(0)
            break
        os.waitpid(between, 0)
        os.close(files[0])
    select.select([gone], [], [])  # from then on the server is the parent
    os.close(gone)
    asked = _Asked(*json.loads(said))
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(NAMES[asked.module].encode()))
    if os.getppid() != server:
        os._exit(0)
    control.send(b"%d" % os.getpid())
    control.close()
    return asked, files[0]


def _run(asked: tuple[_Asked, int]) -> None:
    (module, arguments, env), file = asked
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 does not
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments, str(file)]
    sys.modules[module].main()


def _prctl(option: int, value: object) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
