"""The engine process that `tests/fake_engine.py` starts.

A test holds the process with a file. `steps=PATH` lets a process begin as many steps as the file has bytes.
`loads=PATH` and `builds=PATH` hold the load, or the build after it, as long as the file exists.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from openai_cpu_server.child_processes.signals import die_with_parent, leave_signals_to_parent
from openai_cpu_server.contract.embedding import EmbedResult
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.engine.cores import EngineCpuToken
from openai_cpu_server.engine.embedding import EmbedCore, build_embed_core
from openai_cpu_server.engine.generating import EngineCore, Measure, build_core
from openai_cpu_server.engine.loop import EngineChannel, run_engine
from openai_cpu_server.errors import StartupError
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO, FAKE_RERANKER, FakeBackend, FakeEmbedder

NOWHERE = "/nowhere"
_LOOK_S = 0.002
_STEP_S = 0.01
"""Pause between two counted steps, or two pieces of a load, in which the process reads earlier messages."""


class StepGate:
    """A gate that lets as many steps begin as the file has bytes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._num_started = 0

    def hold(self, interrupted: threading.Event) -> bool:
        """Wait until a step may begin; return True if it was interrupted before."""
        while self._is_closed():
            if interrupted.wait(_LOOK_S):
                interrupted.clear()
                return True
        if self._path.exists():
            time.sleep(_STEP_S)
        self._num_started += 1
        return False

    def _is_closed(self) -> bool:
        try:
            return self._num_started >= self._path.stat().st_size
        except FileNotFoundError:
            return False


class GatedBackend(FakeBackend):
    gate: StepGate

    def execute(self, step: Step) -> StepResult:
        may_be_interrupted = self._interrupted if step.may_be_interrupted else threading.Event()
        if step.spans and self.gate.hold(may_be_interrupted):
            super().execute(Step(verbs=step.verbs))
            return StepResult(interrupted=True)
        return super().execute(step)


class GatedEmbedder(FakeEmbedder):
    gate: StepGate

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        if self.gate.hold(self._interrupted):
            return EmbedResult(interrupted=True)
        return super().embed(inputs)


def _hold(path: str) -> None:
    while Path(path).exists():
        time.sleep(_LOOK_S)


def _kill_on(flags: dict[str, str], options: EngineOptions) -> int | None:
    """Return the token that kills the process. With a device, `device_kills=load` kills it at once."""
    device_kills = flags.get("device_kills") if options.wants_device else None
    if device_kills == "load":
        os.abort()
    token = flags.get("kill_on", device_kills)
    return None if token is None else int(token)


def main() -> None:
    leave_signals_to_parent()
    die_with_parent()
    flags = dict(argument.split("=") for argument in sys.argv[1:-1])
    sock = socket.socket(fileno=int(sys.argv[-1]))

    num_pieces = int(flags.get("load_pieces", 0))
    curve = (
        CostCurve(step_ms=((1, 5000.0), (256, 6000.0)), attended_ms=0.0) if "slow_curve" in flags else None
    )

    def load(options: EngineOptions, on_progress: Callable[[float], None]) -> FakeBackend | FakeEmbedder:
        if "fail" in flags:
            raise StartupError(flags["fail"])
        kill_on = _kill_on(flags, options)
        time.sleep(float(flags.get("load_s", 0)))
        _hold(flags.get("loads", NOWHERE))
        for piece in range(num_pieces):
            on_progress(piece / num_pieces)
            time.sleep(_STEP_S)
        on_progress(1.0)
        why = options.offload.why_cpu_alone
        info = msgspec.structs.replace(
            FAKE_INFO,
            kv_tokens=options.kv_tokens or FAKE_INFO.kv_tokens,
            max_seqs=options.max_seqs,
            placement=None if why is None else DevicePlacement.nowhere(why),
        )
        kill_with = signal.Signals[flags.get("kill_with", "SIGSEGV")]
        step_s = float(flags.get("step_s", 0))
        fakes = {"kill_on": kill_on, "kill_with": kill_with, "step_s": step_s}
        embedder = FAKE_RERANKER if flags.get("embeds") == "scores" else FAKE_EMBEDDER
        backend = (
            GatedEmbedder(embedder, **fakes) if "embeds" in flags else GatedBackend(info, **fakes)  # type: ignore[arg-type]
        )
        backend.gate = StepGate(flags.get("steps", NOWHERE))
        return backend

    def build(
        options: EngineOptions,
        backend: FakeBackend | FakeEmbedder,
        on_progress: Callable[[float], None],
        turn: EngineCpuToken,
    ) -> EngineCore | EmbedCore:
        if isinstance(backend, FakeEmbedder):
            return build_embed_core(options, backend)
        on_progress(float(flags.get("timed", 1.0)))
        time.sleep(float(flags.get("build_s", 0)))
        _hold(flags.get("builds", NOWHERE))
        if "babble_if" in flags and Path(flags["babble_if"]).exists():
            sock.sendall(b"\x01\0\0\0\xc1")  # a complete message whose byte msgpack never uses
        if "dies_measuring" in flags and options.calibrate == "start":
            _die(lambda: False)
        if "dies_measuring" in flags and options.calibrate == "idle":
            return build_core(options, backend, None, _die)
        measure = _endless(Path(flags["measuring"])) if "measuring" in flags else None
        return build_core(options, backend, curve, measure)

    run_engine(EngineChannel(sock), load=load, build_core=build)


def _die(is_wanted: Callable[[], bool]) -> None:
    """A measurement that native code does not survive."""
    signal.raise_signal(signal.SIGSEGV)


def _endless(starts: Path) -> Measure:
    """Measure until a request comes. The file gets a line at each start."""

    def measure(is_wanted: Callable[[], bool]) -> None:
        with starts.open("a") as file:
            file.write("begun\n")
        while not is_wanted():
            time.sleep(_LOOK_S)

    return measure
