"""Servers under test: commands, watched processes, and ours with features off."""

from __future__ import annotations

import collections
import contextlib
import enum
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import psutil

from bench.clients import Clients
from bench.traffic import OURS, Dialect, Failed

SLOTS = 16
_EVERY_S = 0.5


class TreeUse(msgspec.Struct, frozen=True, kw_only=True):
    ready_s: float = 0.0
    ready_rss_bytes: int = 0
    peak_rss_bytes: int
    """Sum of all processes. Pages of a mapped model file that two share count twice."""
    cpu_s: float
    """CPU time of all processes during the workload."""
    wall_s: float
    kernels: dict[str, str] = {}
    """Instruction set of each kernel, or why it is off, from our server's `/health`."""


class TreeSampler:
    """Samples from construction until `stop`."""

    def __init__(self, pid: int, ready_s: float = 0.0) -> None:
        self._root = psutil.Process(pid)
        self._ready_s = ready_s
        self._start = time.perf_counter()
        self._peak_rss = 0
        self._cpu: dict[int, float] = {}
        self._sample()
        self._ready_rss, self._ready_cpu = self._peak_rss, sum(self._cpu.values())
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> TreeUse:
        """Stop sampling while the processes still live."""
        self._ended.set()
        self._thread.join()
        return TreeUse(
            ready_s=self._ready_s,
            ready_rss_bytes=self._ready_rss,
            peak_rss_bytes=self._peak_rss,
            cpu_s=sum(self._cpu.values()) - self._ready_cpu,
            wall_s=time.perf_counter() - self._start,
        )

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(_EVERY_S)
            self._sample()

    def _sample(self) -> None:
        rss = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._root, *self._root.children(recursive=True)]:
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system  # a dead process keeps its last value
                rss += process.memory_info().rss
        self._peak_rss = max(self._peak_rss, rss)


def cpu_by_process(pid: int) -> dict[int, float]:
    """Return CPU seconds so far of a process and of each child."""
    root = psutil.Process(pid)
    times = {process.pid: process.cpu_times() for process in [root, *root.children(recursive=True)]}
    return {each: t.user + t.system for each, t in times.items()}


_START_S = 600
"""The first start with a model measures costs."""
_STOP_S = 30
_POLL_S = 0.05
_LOG_LINES = 30
OUR_COMMAND = (sys.executable, "-m", "openai_cpu_server", "serve", "--cache-file", "off")
_OPTIONS_IN_ENVIRONMENT = ("OCS_", "LLAMA_ARG_", "OTEL_")
"""Variables with options for our server and llama-server."""


class ServerFailed(Failed): ...


@dataclass(frozen=True)
class ServerSpec:
    label: str
    command: tuple[str, ...]
    """`{port}` stands for its port."""
    ready: str
    """Path that answers 200 once the server can generate."""
    dialect: Dialect = OURS
    variables: dict[str, str] = field(default_factory=dict)

    def with_options(self, *options: str) -> ServerSpec:
        return replace(self, command=(*self.command, *options))


def environment() -> dict[str, str]:
    """Leave out options for servers, because a run must not depend on the user's settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS_IN_ENVIRONMENT)}


class Server:
    def __init__(self, spec: ServerSpec, on_line: Callable[[str], object] | None = None) -> None:
        self.spec = spec
        self.port = free_port()
        self._on_line = on_line
        self._lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._started = time.perf_counter()
        try:
            self.process = subprocess.Popen(
                [part.replace("{port}", str(self.port)) for part in spec.command],
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

    def kernels(self) -> dict[str, str]:
        """Return what computes, or nothing for servers that do not report it."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"{self.url}/health", timeout=_STOP_S) as answer,
        ):
            found: dict[str, str] = json.load(answer).get("kernels", {})
            return found
        return {}

    def wait_until_ready(self) -> float:
        """Return the seconds of the start. Raises ServerFailed."""
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
        self._reader.join(_STOP_S)  # a child that outlived the server may still hold its pipe
        if not self._reader.is_alive() and self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        """Read the whole log, because a full pipe would stop the server."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if self._on_line is not None:
                self._on_line(line)


@contextlib.contextmanager
def running(spec: ServerSpec, uses: list[tuple[str, TreeUse]]) -> Iterator[Server]:
    """Yield a ready server, and add its use to `uses` at the end."""
    server = Server(spec)
    try:
        ready_s = server.wait_until_ready()
        kernels, sampler = server.kernels(), TreeSampler(server.pid, ready_s)
        try:
            yield server
        finally:
            uses.append((spec.label, msgspec.structs.replace(sampler.stop(), kernels=kernels)))
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


@dataclass(frozen=True)
class Room:
    pool_tokens: int
    request_tokens: int
    at_once: int = SLOTS
    """Requests for which peers reserve cells."""


@dataclass(frozen=True)
class Contestant:
    """`key` names it on the command line, `label` in tables."""

    key: str
    label: str
    spec: Callable[[Path, Room], ServerSpec] = field(compare=False, repr=False)
    is_peer: bool = True
    does_json: bool = False
    takes_pictures: bool = False
    """Takes `--mmproj`."""
    tells_cached: bool = False
    at_once: int | None = None
    """Largest number of concurrent requests, or None for no limit."""


class Variant(enum.Enum):
    WHOLE = ("ours", "ours", ())
    CACHE_OFF = ("cache-off", "cache off", ("--experiment", "prefix_sharing=off"))
    SEQUENTIAL = ("sequential", "one at a time", ("--experiment", "prefix_sharing=off", "--max-seqs", "1"))
    STATIC = ("static", "static batching", ("--experiment", "continuous_batching=off,mixed_steps=off"))
    PLAIN_STEPS = ("plain-steps", "plain steps", ("--experiment", "tile_filling=off,mixed_steps=off"))
    FIFO = ("fifo", "fifo", ("--policy", "fifo"))

    def __init__(self, key: str, label: str, options: tuple[str, ...]) -> None:
        self.key = key
        self.label = label
        self.options = options

    @property
    def contestant(self) -> Contestant:
        return Contestant(
            key=self.key,
            label=self.label,
            spec=lambda model, room: ours(self, model, "--ctx-size", str(room.pool_tokens)),
            is_peer=False,
            does_json=True,
            takes_pictures=True,
            tells_cached=True,
            at_once=1 if self is Variant.SEQUENTIAL else None,
        )


_REPRODUCIBLE = ("--profile", "off", "--jobs-db", "none", "--calibrate", "start")
"""Options against results of `tune`, guesses, and the user's batch jobs."""


def ours(variant: Variant, model: Path, *options: str) -> ServerSpec:
    where = ("--model", str(model), "--port", "{port}")
    command = (*OUR_COMMAND, *where, *_REPRODUCIBLE, *variant.options, *options)
    return ServerSpec(variant.label, command, ready="/ready")
