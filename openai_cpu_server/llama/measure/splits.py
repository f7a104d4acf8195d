"""Race of the splits that fit on a device.

Attempts are recorded before they begin, because some drivers end the process when memory runs out; the next
start skips them.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.offload import Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.host import NOISY, Machine, OtherProcesses
from openai_cpu_server.llama.measure.measurements import Measured, MeasurementKey, Profile
from openai_cpu_server.llama.measure.probe import Probe
from openai_cpu_server.llama.offload.choice import device_for, split_planner_for
from openai_cpu_server.llama.offload.split import Split, SplitKind, SplitPlanner

logger = logging.getLogger(__name__)

_BUDGET_S = 120.0
"""Seconds after which only the CPU alone is still measured, for comparison."""
_CLEARLY = 0.97
"""Largest share of the first choice's time at which another split is chosen."""
_MOST_TRIES = 2
_REPEATS = 3
_TOGETHER = 16
_PROMPT, _ALONE, _SHARED = 256, 64, 64
"""Turn of a chat: tokens of the prompt, of an answer alone, and of one among 16."""
_NVIDIA = Path("/proc/driver/nvidia/version")


class SplitKey(MeasurementKey, frozen=True, kw_only=True):
    """Conditions without the device's free memory, because each start computes how much fits."""

    VERSION = 2
    device: str
    device_bytes: int
    driver: str
    offload: Offload = msgspec.field(name="asked")
    threads: int
    threads_batch: int
    repack: bool | None
    prefill_tokens: int
    kv_type: str
    flash_attention: bool
    kernels: str

    @classmethod
    def of(cls, options: EngineOptions, device: Device) -> SplitKey:
        try:
            driver = _NVIDIA.read_text("utf-8").partition("\n")[0]
        except OSError:
            driver = platform.release()  # drivers come with the kernel
        threads = options.threads or Machine().num_threads()
        return cls.here(
            Path(options.model_path),
            device=f"{device.backend} {device.name} {device.description}",
            device_bytes=device.total_bytes,
            driver=driver,
            offload=options.offload,
            threads=threads,
            threads_batch=options.threads_batch or threads,
            repack=options.repack,
            prefill_tokens=options.prefill_tokens,
            kv_type=options.kv_type,
            flash_attention=options.flash_attention,
            kernels=options.kernels,
        )


class SplitTime(msgspec.Struct, frozen=True, kw_only=True):
    kind: SplitKind
    layers: int
    experts_on_cpu: int
    cost_ms: float | None
    """Time of a chat turn, or None if the split failed, was skipped, or was not measured to the end."""
    tries: int = 1

    @property
    def is_final(self) -> bool:
        """A first failure may have another cause."""
        return self.cost_ms is not None or self.tries >= _MOST_TRIES


class SplitTimes(msgspec.Struct, frozen=True):
    times: tuple[SplitTime, ...] = ()

    def of(self, kind: SplitKind, split: Split) -> SplitTime | None:
        near = max(2, split.num_layers // 8)
        return next(
            (
                time
                for time in self.times
                if time.kind is kind
                and abs(time.layers - split.gpu_layers) <= near
                and abs(time.experts_on_cpu - split.experts_on_cpu) <= near
            ),
            None,
        )


class SplitRace:
    def __init__(self, candidates: Mapping[SplitKind, Split], key: SplitKey, folder: Path) -> None:
        self._candidates = candidates
        self._key = key
        self._stored_times = Measured(folder, SplitKey, SplitTimes)
        self._times = self._stored_times.get(key) or SplitTimes()
        self._tried: set[SplitKind] = set()

    @property
    def times(self) -> dict[SplitKind, float | None]:
        """Milliseconds, or None for an unusable split."""
        times = ((kind, self._times.of(kind, split)) for kind, split in self._candidates.items())
        return {
            kind: time.cost_ms
            for kind, time in times
            if time is not None and (time.is_final or kind in self._tried)
        }

    @property
    def measured(self) -> list[tuple[Split, float | None]]:
        return [(self._candidates[kind], ms) for kind, ms in self.times.items()]

    @property
    def device(self) -> str:
        return self._key.device

    @property
    def is_run(self) -> bool:
        return len(self._candidates) == 1 or len(self.times) == len(self._candidates)

    def best(self) -> Split:
        first = next(iter(self._candidates))
        costs = {kind: ms for kind, ms in self.times.items() if ms is not None}
        if self.times.get(first, 0.0) is None:  # it was tried, and failed
            return self._candidates[min(costs, key=lambda kind: costs[kind], default=SplitKind.CPU)]
        if first not in costs:
            return self._candidates[first]
        fastest = min(costs, key=lambda kind: costs[kind])
        return self._candidates[fastest if costs[fastest] <= _CLEARLY * costs[first] else first]

    def why_cpu_alone(self) -> str:
        """Reason as a clause."""
        if any(ms is not None for kind, ms in self.times.items() if kind is not SplitKind.CPU):
            return f"it is faster than with {self.device}, as measured"
        return f"no split with {self.device} could be used when that was tried"

    def keep_for(self, profile: Profile) -> None:
        self._stored_times.put(
            msgspec.structs.replace(self._key, **msgspec.structs.asdict(profile)), self._times
        )

    def forget(self) -> None:
        self._times = SplitTimes()

    def run(self, cost_ms: Callable[[Split], float], *, budget_s: float = _BUDGET_S) -> None:
        """`cost_ms`: raises `StartupError` if a split does not load."""
        end = time.monotonic() + budget_s
        neighbours = OtherProcesses()
        for kind, split in self._candidates.items():
            if kind in self.times:
                continue
            if time.monotonic() > end and self.times and kind is not SplitKind.CPU:
                logger.info("splits: no time left for %s", split)
                self._note(kind, split, None, tries=_MOST_TRIES)
                continue
            before = self._times.of(kind, split)
            if not self._note(kind, split, None, tries=1 if before is None else before.tries + 1):
                self.forget()  # the engine that replaces this one would find something else
                return
            self._tried.add(kind)
            try:
                ms = cost_ms(split)
            except StartupError as error:
                logger.info("splits: %s: %s", split, error)
                continue
            logger.info("splits: %s: %.0f ms for a turn of a chat", split, ms)
            self._note(kind, split, ms)
        if neighbours.share() >= NOISY:
            logger.warning(
                "other processes kept the machine busy while splits were timed: "
                "openai-cpu-server tune --gpu-layers auto measures them again"
            )

    def _note(self, kind: SplitKind, split: Split, ms: float | None, *, tries: int = 1) -> bool:
        result = SplitTime(
            kind=kind, layers=split.gpu_layers, experts_on_cpu=split.experts_on_cpu, cost_ms=ms, tries=tries
        )
        self._times = SplitTimes((*(t for t in self._times.times if t.kind is not kind), result))
        return self._stored_times.put(self._key, self._times)


def with_fastest_split(options: EngineOptions, on_progress: Callable[[float], None]) -> EngineOptions:
    """Replace `auto` by the fastest split, if there is a device and a folder for measurements."""
    if options.offload.gpu_layers != "auto" or options.cost_dir is None:
        return options
    device = device_for(options.offload)
    if device is None:
        return options
    planner = split_planner_for(options, device, Machine().free_memory())
    race = SplitRace(planner.candidates(), SplitKey.of(options, device), Path(options.cost_dir))
    if not race.is_run and options.calibrate != "never":
        logger.info("measuring which split is the fastest (once for a model and a device)")
        race.run(lambda split: _timed_turn(options, split, on_progress))
    how = "measured" if race.times else "reckoned, not measured"
    logger.info("splits: %s (%s)", race.best(), how)
    return msgspec.structs.replace(options, offload=fastest(race, planner))


def fastest(race: SplitRace, planner: SplitPlanner) -> Offload:
    if not race.best().is_cpu_alone:
        return race.best().offload
    return Offload(why_cpu_alone=race.why_cpu_alone() if race.times else planner.why_cpu_alone)


def _timed_turn(options: EngineOptions, split: Split, on_progress: Callable[[float], None]) -> float:
    def alive() -> bool:
        on_progress(0.0)
        return False

    options = msgspec.structs.replace(options, offload=split.offload)
    backend = LlamaBackend.load(options, lambda fraction: on_progress(0.0))
    try:
        with Probe(backend, alive) as probe:
            return _turn_ms(probe, backend.info, options.prefill_tokens)
    finally:
        backend.close()


def _turn_ms(probe: Probe, info: ModelInfo, prefill_tokens: int) -> float:
    """The second step of a prompt is timed, because the first may compile programs."""
    chunk = max(1, min(prefill_tokens, info.max_step_tokens, info.kv_tokens // 4))
    probe.compute({0: chunk})
    prompt_ms = probe.compute({0: chunk}) / chunk
    alone_ms = min(probe.compute({0: 1}) for _ in range(_REPEATS))
    slots = range(min(_TOGETHER, info.max_seqs, info.kv_tokens // 8))
    shared_ms = min(probe.compute(dict.fromkeys(slots, 1)) for _ in range(_REPEATS)) / len(slots)
    return _PROMPT * prompt_ms + _ALONE * alone_ms + _SHARED * shared_ms
