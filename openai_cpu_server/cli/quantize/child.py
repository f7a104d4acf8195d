"""Worker process, seen from the command, and the messages of both."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Union

import msgspec

from openai_cpu_server.child_processes.spawn import child_environment
from openai_cpu_server.llama.gguf.quantize import QuantizeFailed, QuantizeOptions, QuantizePlan


class QuantizeJob(msgspec.Struct, frozen=True):
    """First line to the worker, answered with `QuantizePlanned` or `QuantizeRefused`."""

    source: str
    options: QuantizeOptions


class QuantizeOrder(msgspec.Struct, frozen=True):
    """Second line, answered with a `TensorBegun` per tensor, then `QuantizeDone` or `QuantizeRefused`."""

    folder: str
    """Folder for the output. The worker removes it if the command is gone."""
    target: str
    """File in it, or the beginning of the parts' names."""


class QuantizePlanned(msgspec.Struct, frozen=True, tag=True):
    plan: QuantizePlan


class TensorBegun(msgspec.Struct, frozen=True, tag=True):
    number: int
    """Position in the plan, from 1."""


class QuantizeDone(msgspec.Struct, frozen=True, tag=True): ...


class QuantizeRefused(msgspec.Struct, frozen=True, tag=True):
    reason: str


Answer = Union[QuantizePlanned, TensorBegun, QuantizeDone, QuantizeRefused]

_COMMAND = (sys.executable, "-m", "openai_cpu_server.cli.quantize.worker")


class QuantizeProcess:
    """Context manager of the process, which is killed at the end."""

    def __init__(self, job: QuantizeJob) -> None:
        self._last_words = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._last_words,
            env=child_environment(),
        )
        self._send(job)

    def plan(self) -> QuantizePlan:
        """Return the plan. Call it once, first of all. Raises QuantizeFailed."""
        answer = self._receive()
        assert isinstance(answer, QuantizePlanned)
        return answer.plan

    def run(self, go: QuantizeOrder, on_tensor: Callable[[int], None]) -> None:
        """Do the work. Call it once, after `plan`. Raises QuantizeFailed."""
        self._send(go)
        while isinstance(answer := self._receive(), TensorBegun):
            on_tensor(answer.number)
        assert isinstance(answer, QuantizeDone)

    def _send(self, message: msgspec.Struct) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._death() from None

    def _receive(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death()
        answer: Answer = msgspec.json.decode(line, type=Answer)
        if isinstance(answer, QuantizeRefused):
            raise QuantizeFailed(answer.reason)
        return answer

    def _death(self) -> QuantizeFailed:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return QuantizeFailed("the process was killed; did memory run out?")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return QuantizeFailed(f"llama.cpp crashed ({how}){self._telling_line()}")

    def _telling_line(self) -> str:
        self._last_words.seek(0)
        lines = self._last_words.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if "GGML_ASSERT" in line] or lines[-1:]
        return f": {telling[0].strip()}" if telling else ""

    def __enter__(self) -> QuantizeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._last_words.close()
