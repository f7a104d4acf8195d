"""Servers under test: their commands, and a running server that is watched and stopped by its id."""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.dialect import OURS, Dialect
from bench.failures import Failed
from bench.load import Clients
from bench.process_tree import TreeSampler, TreeUse

_START_S = 600
"""The first start with a model takes long, because it measures costs."""
_STOP_S = 30
_POLL_S = 0.05
_LOG_LINES = 30
OUR_COMMAND = (sys.executable, "-m", "openai_cpu_server", "serve", "--cache-file", "off")
_OPTIONS_IN_ENVIRONMENT = ("OCS_", "LLAMA_ARG_", "OTEL_")
"""Prefixes of variables from which our server and llama-server take options."""

OnLine = Callable[[str], None]


class ServerFailed(Failed): ...


@dataclass(frozen=True)
class ServerSpec:
    """Command of a server. `{port}` in the command or the file stands for its port."""

    label: str
    command: tuple[str, ...]
    """`{file}` stands for the path of the file."""
    ready: str
    """Path that answers 200 as soon as the server can generate."""
    file: str | None = None
    dialect: Dialect = OURS
    variables: dict[str, str] = field(default_factory=dict)

    def with_options(self, *options: str) -> ServerSpec:
        return replace(self, command=(*self.command, *options))

    def on(self, port: int, folder: Path) -> list[str]:
        path = folder / "options.json"
        if self.file is not None:
            path.write_text(self.file.replace("{port}", str(port)), encoding="utf-8")
        return [part.replace("{port}", str(port)).replace("{file}", str(path)) for part in self.command]


def environment() -> dict[str, str]:
    """Return this process's environment without options for servers, because a run must not depend on the
    user's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS_IN_ENVIRONMENT)}


class Server:
    """Running server, made by `running`."""

    def __init__(self, spec: ServerSpec, folder: Path, on_line: OnLine | None = None) -> None:
        self.spec = spec
        self.port = free_port()
        self._on_line = on_line
        self._lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._started = time.perf_counter()
        try:
            self.process = subprocess.Popen(
                spec.on(self.port, folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment() | spec.variables,
            )
        except OSError as error:
            raise ServerFailed(f"{spec.label} cannot be started: {error}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def clients(self) -> Clients:
        return Clients(self.port, self.spec.dialect)

    def wait_until_ready(self) -> float:
        """Wait for the server, and return the seconds of its start. Raises ServerFailed."""
        deadline = time.perf_counter() + _START_S
        while not _answers(self.port, self.spec.ready):
            if self.process.poll() is not None:
                self._reader.join(_STOP_S)
                raise ServerFailed(f"{self.spec.label} ended:\n{''.join(self._lines)}")
            if time.perf_counter() > deadline:
                raise ServerFailed(f"{self.spec.label} was not ready after {_START_S} s")
            time.sleep(_POLL_S)
        return time.perf_counter() - self._started

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(_STOP_S)  # who has outlived the server may still hold its pipe
        if not self._reader.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        """Read the log to its end, because a full pipe would stop the server."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if self._on_line is not None:
                self._on_line(line)


@contextlib.contextmanager
def running(spec: ServerSpec, uses: list[tuple[str, TreeUse]]) -> Iterator[Server]:
    """Yield a server that is ready, and add its use to `uses` at the end."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        server = Server(spec, Path(folder))
        try:
            ready_s = server.wait_until_ready()
            sampler = TreeSampler(server.pid, ready_s)
            try:
                yield server
            finally:
                uses.append((spec.label, sampler.stop()))
        finally:
            server.stop()


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
            )
            return connection.makefile("rb").readline().split()[1:2] == [b"200"]
    except OSError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
