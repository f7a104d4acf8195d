"""The sequences in each step of a run, which our server logs at level `debug`."""

from __future__ import annotations

import msgspec

from bench.asking import Trace

_LOGGER = "openai_cpu_server.engine.trace"
_MOST_STEPS = 1000
"""In a picture, more steps cannot be told apart."""


class Part(msgspec.Struct, frozen=True):
    """One sequence's tokens in a step."""

    id: str
    priority: str
    tokens: int
    decodes: bool
    """Whether the sequence decodes; else it reads its prompt."""


class Step(msgspec.Struct, frozen=True):
    started_s: float
    """Seconds on the clock that `time.perf_counter` and `time.monotonic` share on Linux."""
    elapsed_ms: float
    padding: int
    interrupted: bool
    spans: tuple[Part, ...]


class Timeline(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...]
    arrivals_s: tuple[float, ...]
    """The arrivals of interactive requests, on the same clock."""


class _Line(msgspec.Struct, frozen=True):
    logger: str = ""


class StepLog:
    """Reads a server's log (JSON lines) for its steps."""

    def __init__(self) -> None:
        self._steps: list[Step] = []

    def note(self, line: str) -> None:
        """Read a line; lines that are about something else are skipped."""
        try:
            if msgspec.json.decode(line, type=_Line).logger == _LOGGER:
                self._steps.append(msgspec.json.decode(line, type=Step))
        except msgspec.DecodeError:
            pass  # what is no JSON comes from native code

    def timeline(self, begin: float, end: float, interactive: list[Trace]) -> Timeline:
        """The steps that began between these times."""
        steps = [step for step in self._steps if begin <= step.started_s < end][:_MOST_STEPS]
        last = steps[-1].started_s if steps else begin
        arrivals = (trace.arrival for trace in interactive if begin <= trace.arrival <= last)
        return Timeline(tuple(steps), tuple(arrivals))
