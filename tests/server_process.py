"""The real server as a process, as a user starts it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import httpx
import psutil

from tests.company import HAS_COMPANY
from tests.waiting import DEADLINE_S
from tests.warm import start


class ServerProcess:
    """`openai-cpu-server serve ...` on a free port; `lines` is its log."""

    def __init__(
        self,
        *options: str,
        env: dict[str, str] | None = None,
        max_open_files: int | None = None,
        is_fresh: bool = False,
        is_ready_at_once: bool = False,
        module: str = "openai_cpu_server",
    ) -> None:
        """`is_fresh`: the process imports for itself, as for a user, and is not a fork of `tests/warm.py`. A
        limit of open files or another `module` implies that. `is_ready_at_once`: the server loads no model at
        its start."""
        self.lines: list[str] = []
        self._is_ready_at_once = is_ready_at_once
        self._has_ended = False
        self._changed = threading.Condition()
        command = ["serve"]
        if "--port" not in options:
            command += ["--port", "0"]
        if "--calibrate" not in options:
            command += ["--calibrate", "never"]
        if "--threads" not in options and HAS_COMPANY:
            command += ["--threads", "1"]
        if "--jobs-db" not in options:
            command += ["--jobs-db", "sqlite://"]  # in memory: no test leaves jobs behind for a user's server
        if "--drain-seconds" not in options:
            command += ["--drain-seconds", "0"]  # a test ends without waiting for requests
        command += options
        if is_fresh or max_open_files is not None or module != "openai_cpu_server":
            command = [sys.executable, "-m", module, *command]
            if max_open_files is not None:
                command = ["/bin/sh", "-c", f'ulimit -n {max_open_files} && exec "$@"', "sh", *command]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, **pipes, text=True, env=env)
        else:
            self.process = start(*command, env=env)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ServerProcess:
        self.url = "http://127.0.0.1:" + self.wait_for(
            r"listening on http://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)"
        )
        if not self._is_ready_at_once:
            self.wait_for("(ready): ")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Print the end of the log if the test fails, and whether the server had ended before."""
        when = "ended" if self.process.poll() is None else "had ended before"
        code = self.stop(signal.SIGTERM)
        if error is not None:
            sys.stderr.write(f"the server {when}, with {code}:\n{''.join(self.lines[-100:])}")

    def wait_for(self, pattern: str, count: int = 1, timeout_s: float = DEADLINE_S) -> str:
        """Return the first group of the `count`th matching line. Raises AssertionError if none comes."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._matches(pattern)) >= count or self._has_ended, timeout_s)
            found = self._matches(pattern)
        assert len(found) >= count, f"the server did not write {pattern!r}:\n" + "".join(self.lines)
        return found[count - 1][1]

    def _matches(self, pattern: str) -> list[re.Match[str]]:
        return [found for line in self.lines if (found := re.search(pattern, line))]

    def stop(self, number: int) -> int:
        """Send a signal, wait for the end and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=DEADLINE_S)
        self._reader.join()
        self.process.stdout.close()
        return code

    @property
    def engine(self) -> psutil.Process:
        (engine,) = engines_of(self.process.pid)
        return engine

    def readers(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children() if is_reader(child)]

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=DEADLINE_S, **options)

    def post(self, path: str, json: object = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=json, timeout=DEADLINE_S, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return httpx.delete(self.url + path, timeout=DEADLINE_S, **options)

    def status(self) -> dict[str, Any]:
        return self.get("/health").json()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def engines_of(pid: int) -> list[psutil.Process]:
    """Return the engines of the API process with this pid."""
    children = psutil.Process(pid).children()
    return [child for child in children if child.is_running() and not is_reader(child)]


def is_reader(process: psutil.Process) -> bool:
    """Return False for a process that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "openai_cpu_server.reader.process" in process.cmdline()
    return False
