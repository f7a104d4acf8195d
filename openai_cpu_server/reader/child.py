"""Reader process, seen from its parent. Imports little, to run beside the child's imports."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from contextlib import suppress

import psutil

from openai_cpu_server.child_processes.spawn import death_cause, spawn_options
from openai_cpu_server.contract.messages import LENGTH, read_frame

_MODULE = "openai_cpu_server.reader.process"
PATIENCE_S = 60.0
_PROGRESS = 1 / 60
"""Least CPU share that counts as progress."""
_END_S = 5.0
SILENCE = "silence"


class ReaderDied(Exception):
    """`cause`: a signal's name, `exit_1` and the like, or `silence`."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class ReaderChild:
    """Owner of a process, which the kernel ends with the thread that created it."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: longest time without progress. Raises OSError."""
        self._patience_s = patience_s
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                command = (sys.executable, "-m", _MODULE, str(theirs.fileno()))
                self._process = subprocess.Popen(command, **spawn_options(theirs))
            except BaseException:
                ours.close()
                raise
        ours.settimeout(patience_s)
        self._usage = psutil.Process(self._process.pid)
        self._socket = ours
        self._stream = ours.makefile("rb")

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *messages: bytes) -> None:
        """Send without a copy: 20 MB would hold the interpreter's lock for 10 ms. Raises ReaderDied."""
        try:
            for message in messages:
                self._socket.sendall(LENGTH.pack(len(message)))
                self._socket.sendall(message)
        except OSError as error:
            raise self._death(error) from None

    def receive(self) -> bytes:
        """Return a message. Raises ReaderDied."""
        try:
            computed_s = self._computed_s()
            while not select.select([self._socket], [], [], self._patience_s)[0]:
                before_s, computed_s = computed_s, self._computed_s()
                if computed_s - before_s < self._patience_s * _PROGRESS:
                    raise TimeoutError
            message = read_frame(self._stream)
        except OSError as error:
            raise self._death(error) from None
        if message is None:
            raise self._death()
        return message

    def _computed_s(self) -> float:
        try:
            times = self._usage.cpu_times()
        except psutil.Error:
            return 0.0  # the socket will report its death
        return float(times.user + times.system)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Wait for the end."""
        with suppress(OSError):
            self._stream.close()
            self._socket.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _death(self, error: OSError | None = None) -> ReaderDied:
        if isinstance(error, TimeoutError):
            self._process.kill()
            self.close()
            return ReaderDied(SILENCE)
        self.close()
        return ReaderDied(death_cause(self._process.returncode))
