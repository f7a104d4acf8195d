"""Starts the process that does the work, and stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from types import TracebackType

import msgspec

from openai_cpu_server.commands.quantize.messages import Answer, Began, Done, Failed, Go, Job, Planned
from openai_cpu_server.llama.gguf.quantize import Plan, QuantizeFailed
from openai_cpu_server.sandbox.environment import child_environment

_COMMAND = (sys.executable, "-m", "openai_cpu_server.commands.quantize.worker")


class Child:
    """The process within a `with` block. At the end of the block it is killed, whatever it does."""

    def __init__(self, job: Job) -> None:
        self._last_words = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._last_words,
            env=child_environment(),
        )
        self._send(job)

    def plan(self) -> Plan:
        """Ask for the plan. Call it once, first of all. Raises `QuantizeFailed`."""
        answer = self._receive()
        assert isinstance(answer, Planned)
        return answer.plan

    def run(self, go: Go, on_tensor: Callable[[int], None]) -> None:
        """Do the work. Call it once, after `plan`. Raises `QuantizeFailed`."""
        self._send(go)
        while isinstance(answer := self._receive(), Began):
            on_tensor(answer.number)
        assert isinstance(answer, Done)

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
        if isinstance(answer, Failed):
            raise QuantizeFailed(answer.reason)
        return answer

    def _death(self) -> QuantizeFailed:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return QuantizeFailed("the process was killed; did memory run out?")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return QuantizeFailed(f"llama.cpp crashed ({how}){self._telling_line()}")

    def _telling_line(self) -> str:
        """The line in which the process printed why it died."""
        self._last_words.seek(0)
        lines = self._last_words.read().decode("utf-8", "replace").splitlines()
        telling = [line for line in lines if "GGML_ASSERT" in line] or lines[-1:]
        return f": {telling[0].strip()}" if telling else ""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._last_words.close()
