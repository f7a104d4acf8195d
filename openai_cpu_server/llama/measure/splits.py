"""Measures once which of the splits that fit on a device is the fastest, and keeps it.

The model is loaded with one split after the other. A split that ends the process (some drivers do that where
memory runs out) was written down before: the next start passes it over.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.offload import Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import NOISY, Machine, OtherProcesses
from openai_cpu_server.llama.measure.measurements import MachineFacts, Measurements, ModelFacts
from openai_cpu_server.llama.measure.probe import Probe
from openai_cpu_server.llama.offload.choice import device_for, fitting_for
from openai_cpu_server.llama.offload.split import Split, SplitKind

logger = logging.getLogger(__name__)

_VERSION = 1
_BUDGET_S = 120.0
"""No further split is loaded once so many seconds are spent, but the CPU alone: that must be compared."""
_CLEARLY = 0.97
"""Another split than the first choice is taken only if it takes at most this share of the time."""
_MOST_TRIES = 2
_REPEATS = 3
_TOGETHER = 16
_PROMPT, _ALONE, _SHARED = 256, 64, 64
"""A turn of a chat: tokens of the prompt, of an answer alone, and of one among 16."""
_NVIDIA = Path("/proc/driver/nvidia/version")


class SplitKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice depends on. How much is free on the device, and how large the cells are, is not among
    it: what was measured says which kind of split is the fastest, and how much of it fits is reckoned at each
    start."""

    version: int
    model: ModelFacts
    machine: MachineFacts
    device: str
    device_bytes: int
    driver: str
    asked: Offload
    has_draft: bool
    has_projector: bool

    @classmethod
    def of(cls, options: EngineOptions, device: Device) -> SplitKey:
        """Raises `StartupError` if the file is no model."""
        return cls(
            version=_VERSION,
            model=ModelFacts.of(Path(options.model_path)),
            machine=MachineFacts.here(),
            device=f"{device.backend} {device.name} {device.description}",
            device_bytes=device.total_bytes,
            driver=_driver(),
            asked=options.offload,
            has_draft=options.draft_model_path is not None,
            has_projector=options.projector_path is not None,
        )


def _driver() -> str:
    """NVIDIA's version; else that of the kernel, whose drivers come with it."""
    try:
        return _NVIDIA.read_text("utf-8").partition("\n")[0]
    except OSError:
        return platform.release()


class SplitTime(msgspec.Struct, frozen=True, kw_only=True):
    kind: SplitKind
    layers: int
    """On the device."""
    cost_ms: float | None
    """Of a turn of a chat; None: it could not be loaded, there was no time for it, or its measurement has not
    come to its end."""
    tries: int = 1

    @property
    def is_final(self) -> bool:
        """Somebody may have ended the process, and not the device: it gets a second chance."""
        return self.cost_ms is not None or self.tries >= _MOST_TRIES


class SplitTimes(msgspec.Struct, frozen=True):
    times: tuple[SplitTime, ...] = ()

    def of(self, kind: SplitKind, split: Split) -> SplitTime | None:
        """What was measured of such a split, of about as many layers."""
        near = max(2, split.num_layers // 8)
        return next(
            (t for t in self.times if t.kind is kind and abs(t.layers - split.gpu_layers) <= near), None
        )

    def with_(self, time: SplitTime) -> SplitTimes:
        return SplitTimes((*(t for t in self.times if t.kind is not time.kind), time))


class SplitRace:
    """The splits of one model on one device, and what is known of their speed."""

    def __init__(
        self,
        candidates: Mapping[SplitKind, Split],
        key: SplitKey,
        folder: Path,
    ) -> None:
        """`folder`: where it is kept what was measured."""
        self._candidates = candidates
        self._key = key
        self._kept = Measurements(folder)
        self._known = self._kept.get(key, SplitTimes) or SplitTimes()

    @property
    def times(self) -> dict[SplitKind, float | None]:
        """Of the candidates that were measured; None: it cannot be used."""
        found = ((kind, self._known.of(kind, split)) for kind, split in self._candidates.items())
        return {kind: time.cost_ms for kind, time in found if time is not None and time.is_final}

    @property
    def measured(self) -> list[tuple[Split, float | None]]:
        return [(self._candidates[kind], ms) for kind, ms in self.times.items()]

    @property
    def device(self) -> str:
        """What people know it by."""
        return self._key.device

    @property
    def is_run(self) -> bool:
        return len(self._candidates) == 1 or len(self.times) == len(self._candidates)

    def best(self) -> Split:
        """The fastest that was measured, if that is clearly faster than the first choice; else that one."""
        first = next(iter(self._candidates))
        costs = {kind: ms for kind, ms in self.times.items() if ms is not None}
        if self.times.get(first, 0.0) is None:  # it was tried, and failed
            return self._candidates[min(costs, key=lambda kind: costs[kind], default=SplitKind.CPU)]
        if first not in costs:
            return self._candidates[first]
        fastest = min(costs, key=lambda kind: costs[kind])
        return self._candidates[fastest if costs[fastest] <= _CLEARLY * costs[first] else first]

    def forget(self) -> None:
        """Measure all of it anew."""
        self._known = SplitTimes()

    def run(self, cost_ms: Callable[[Split], float]) -> None:
        """Measure what is not known, and keep it. `cost_ms` raises `StartupError` for what does not load."""
        end = time.monotonic() + _BUDGET_S
        neighbours = OtherProcesses()
        for kind, split in self._candidates.items():
            if kind in self.times:
                continue
            if time.monotonic() > end and self.times and kind is not SplitKind.CPU:
                logger.info("splits: no time left for %s", split)
                self._note(kind, split, None, tries=_MOST_TRIES)
                continue
            before = self._known.of(kind, split)
            if not self._note(kind, split, None, tries=1 if before is None else before.tries + 1):
                self.forget()  # the engine that replaces this one would find something else
                return
            try:
                ms = cost_ms(split)
            except StartupError as error:
                logger.info("splits: %s: %s", split, error)
                self._note(kind, split, None, tries=_MOST_TRIES)
                continue
            logger.info("splits: %s: %.0f ms for a turn of a chat", split, ms)
            self._note(kind, split, ms)
        if neighbours.share() >= NOISY:
            logger.warning(
                "other processes kept the machine busy while splits were timed: "
                "openai-cpu-server tune --gpu-layers auto measures them again"
            )

    def _note(self, kind: SplitKind, split: Split, ms: float | None, *, tries: int = 1) -> bool:
        noted = SplitTime(kind=kind, layers=split.gpu_layers, cost_ms=ms, tries=tries)
        self._known = self._known.with_(noted)
        return self._kept.put(self._key, self._known)


class _Turn(NamedTuple):
    """Milliseconds for a token."""

    prompt: float
    alone: float
    together: float

    @property
    def ms(self) -> float:
        return _PROMPT * self.prompt + _ALONE * self.alone + _SHARED * self.together


def with_fastest_split(
    options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
) -> EngineOptions:
    """The options with numbers in place of `auto`: those of the fastest split, as it was measured at an
    earlier start, by `tune`, or now. Without a folder in which that is kept, and without a device, they stay
    as they are. Raises `StartupError`."""
    if options.offload.gpu_layers != "auto" or options.cost_dir is None:
        return options
    device = device_for(options.offload)
    if device is None:
        return options
    fitting = fitting_for(options, device, (machine or Machine()).free_memory())
    race = SplitRace(fitting.candidates(), SplitKey.of(options, device), Path(options.cost_dir))
    if not race.is_run and options.calibrate != "never":
        logger.info("measuring which split is the fastest (once for a model and a device)")
        race.run(lambda split: _timed_turn(options, split, on_progress))
    best, how = race.best(), "measured" if race.times else "reckoned, not measured"
    logger.info("splits: %s (%s)", best, how)
    offload = best.offload
    if best.is_cpu_alone and race.times:
        offload = Offload(given_up=f"it is faster than with {device.name}, as measured")
    return msgspec.structs.replace(options, offload=offload)


def _timed_turn(options: EngineOptions, split: Split, on_progress: Callable[[float], None]) -> float:
    """Milliseconds of a turn of a chat with this split. Raises `StartupError`."""

    def alive() -> bool:
        on_progress(0.0)
        return False

    asked = msgspec.structs.replace(options, offload=split.offload)
    backend = LlamaBackend.load(asked, lambda fraction: on_progress(0.0))
    try:
        with Probe(backend, alive) as probe:
            return _turn(probe, backend.info, options.prefill_tokens).ms
    finally:
        backend.close()


def _turn(probe: Probe, info: ModelInfo, prefill_tokens: int) -> _Turn:
    """The second step of a prompt is timed: the first may compile a device's programs."""
    chunk = max(1, min(prefill_tokens, info.max_step_tokens, info.kv_tokens // 4))
    probe.compute({0: chunk})
    prompt = probe.compute({0: chunk}) / chunk
    alone = min(probe.compute({0: 1}) for _ in range(_REPEATS))
    slots = range(min(_TOGETHER, info.max_seqs, info.kv_tokens // 8))
    together = min(probe.compute(dict.fromkeys(slots, 1)) for _ in range(_REPEATS)) / len(slots)
    return _Turn(prompt, alone, together)
