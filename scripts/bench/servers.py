"""Servers under test: what starts each, and a running one that is watched and stopped by its id."""

from __future__ import annotations

import collections
import contextlib
import enum
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.process_tree import TreeSampler, TreeUse

_START_S = 600
"""The first start with a model measures its costs."""
_STOP_S = 30
_LOG_LINES = 30
_OURS = (sys.executable, "-m", "openai_cpu_server", "serve")


class ServerFailed(Exception):
    """A server did not start; the message ends with the end of its log."""


class Variant(enum.Enum):
    """Our server, whole and with features off; the options that make it so."""

    WHOLE = ("ours", ())
    CACHE_OFF = ("cache off", ("--no-prefix-sharing",))
    SEQUENTIAL = ("one at a time, cache off", ("--no-prefix-sharing", "--max-seqs", "1"))
    PLAIN_STEPS = ("no tile filling, no mixed steps", ("--no-tile-filling", "--no-mixed-steps"))
    FIFO = ("first come, first served", ("--policy", "fifo"))

    def __init__(self, label: str, options: tuple[str, ...]) -> None:
        self.label = label
        self.options = options


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server, ours or another: `{port}` in the command stands for its port."""

    label: str
    command: tuple[str, ...]
    ready: str
    """Pattern of the log line that says that it can generate."""

    def on(self, port: int) -> list[str]:
        return [part.replace("{port}", str(port)) for part in self.command]


def ours(variant: Variant, model: Path, *options: str) -> ServerSpec:
    command = (*_OURS, "--model", str(model), "--port", "{port}", *variant.options, *options)
    return ServerSpec(variant.label, command, ready=r"\bready: ")


def our_options() -> frozenset[str]:
    """The options that `serve` has. Raises ServerFailed."""
    done = subprocess.run([*_OURS, "--help"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"`serve --help` fails:\n{done.stderr}")
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", done.stdout))


def missing_options(spec: ServerSpec, known: frozenset[str]) -> list[str]:
    return [part for part in spec.command if part.startswith("--") and part not in known]


class Server:
    """A running one; made by `running`."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.port = _free_port()
        self._lines: collections.deque[str] = collections.deque(maxlen=_LOG_LINES)
        self._ready = threading.Event()
        self._process = subprocess.Popen(
            spec.on(self.port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Raises ServerFailed."""
        in_time = self._ready.wait(_START_S)
        if not in_time or self._process.poll() is not None:
            why = "ended" if in_time else f"was not ready after {_START_S} s"
            raise ServerFailed(f"{self.spec.label} {why}:\n{''.join(self._lines)}")

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        """The log is read to its end: a full pipe would stop the server."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if re.search(self.spec.ready, line):
                self._ready.set()
        self._ready.set()  # it ended: whoever waits shall see that


@contextlib.contextmanager
def running(spec: ServerSpec, uses: list[tuple[str, TreeUse]]) -> Iterator[Server]:
    """A server that is ready. When it is left, what it used is added to `uses`."""
    server = Server(spec)
    try:
        server.wait_until_ready()
        sampler = TreeSampler(server.pid)
        try:
            yield server
        finally:
            uses.append((spec.label, sampler.stop()))
    finally:
        server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
