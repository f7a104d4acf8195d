"""Cost curve of a loaded model, measured and stored on disk."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from openai_cpu_server.contract import model_info
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.llama.host import NOISY, OtherProcesses
from openai_cpu_server.llama.measure.measurements import Measured, MeasurementKey
from openai_cpu_server.llama.measure.probe import CONTEXT, Disturbed, Probe, Stopwatch, attention_price_ms

logger = logging.getLogger(__name__)

_SIZES = (1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64, 128, 256, 512)
_DEVICE_SIZES = (1, 2, 4, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 80, 128, 129, 144, 256, 512)
"""Both sides of ggml's stairs, and the end of a tile of ours behind each.

ggml multiplies up to 8 rows one by one on a device, and more in tiles of 32, 64 and 128 (ggml-vulkan.cpp,
mmq.cuh).
"""
_DECODES = 32
"""Decoding sequences of a measured step; a prompt has the rest."""
_STATES = 16
"""Most sequences of the step that prices a state."""
_ROUNDS = 4
_STEEPEST_FALL = 1.6
"""Largest ratio of a size's cost to a larger size's: a full tile of 16 was seen to save a third."""
_SIZES_SHARE = 0.5
_LEAST_CONTEXT = 256
"""Cells that make the price exact enough."""
_LEAST_CHUNKS = 2
"""A context of so few steps fits into any gap between requests."""


class CurveKey(MeasurementKey, frozen=True, kw_only=True, omit_defaults=True):
    VERSION = 8
    num_parameters: int
    threads: int
    threads_batch: int | None
    kv_type: str
    weights: model_info.WeightLayout
    flash_attention: bool
    kernels: dict[str, str | None]
    """Instruction sets, or None if ggml computes."""
    kv_tokens: int
    """Largest power of two within the pool, because a slightly larger pool changes nothing."""
    max_seqs: int
    max_step_tokens: int
    split: str | None = None
    """Split, or None for the CPU alone."""

    @classmethod
    def of(cls, info: model_info.ModelInfo, options: EngineOptions) -> CurveKey:
        split, placement = None, info.placement
        if placement is not None and placement.device is not None and placement.split is not None:
            patterns = "".join(f", {pattern}={to}" for pattern, to in options.offload.tensor_place)
            split = f"{placement.device.description}: {placement.split}{patterns}"
        return cls.here(
            Path(info.path),
            num_parameters=info.num_parameters,
            threads=info.threads,
            threads_batch=options.threads_batch,
            kv_type=info.kv_type,
            weights=info.weights,
            flash_attention=options.flash_attention,
            kernels=info.kernels.instruction_sets,
            kv_tokens=1 << (info.kv_tokens.bit_length() - 1),
            max_seqs=info.max_seqs,
            max_step_tokens=info.max_step_tokens,
            split=split,
        )


def cost_curve(
    backend: Backend,
    options: EngineOptions,
    cache_dir: Path,
    on_progress: Callable[[float], None] = lambda fraction: None,
    neighbours: OtherProcesses | None = None,
) -> model_info.CostCurve:
    calibrator = Calibrator(backend, options, cache_dir, on_progress, neighbours)
    curve = calibrator.stored_curve() or calibrator.measure()
    assert curve is not None, "nothing else is wanted"
    on_progress(1.0)
    return curve


class Calibrator:
    """Measures in pieces, repeated if disturbed: each size, the price of attention, each size again.

    Small sizes come first, because they get the remaining time. A curve measured beside busy processes is not
    stored, nor are costs learned while serving, which are soon learned again.
    """

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        cache_dir: Path,
        on_progress: Callable[[float], None] = lambda fraction: None,
        neighbours: OtherProcesses | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._info = info = backend.info
        self._key = CurveKey.of(info, options)
        self._curves = curves(cache_dir)
        self._neighbours = neighbours or OtherProcesses()
        self._seconds = 0.0
        self._others_s = 0.0
        self._watch = Stopwatch(_budget_s(info), on_progress, clock)
        self._best: dict[int, float] = {}
        self._attended_ms: float | None = None
        self._state_ms: float | None = None if info.state_bytes else 0.0
        self._context = CONTEXT
        self._on_device = info.placement is not None and info.placement.split is not None
        largest = min(info.max_step_tokens, info.kv_tokens)
        self._pending = deque(n for n in (_DEVICE_SIZES if self._on_device else _SIZES) if n <= largest)
        self._rounds_left = _ROUNDS - 1

    def stored_curve(self) -> model_info.CostCurve | None:
        return self._curves.get(self._key)

    def measure(self, is_wanted: Callable[[], bool] = lambda: False) -> model_info.CostCurve | None:
        """Return None if other work came up; another call continues.

        Takes about 10 s for 10^9 parameters, 40 s for 7 * 10^9 and more.
        """
        if not self._seconds:
            logger.info(
                "measuring what steps cost (once for a model and its options, about %.0f s)",
                _budget_s(self._info),
            )
        started_s = time.monotonic()
        self._neighbours.share()
        try:
            with Probe(self._backend, is_wanted) as probe:
                while not self._is_done:
                    self._measure_next(probe)
        except Disturbed:
            return None
        finally:
            seconds = time.monotonic() - started_s
            self._seconds += seconds
            self._others_s += seconds * self._neighbours.share()
        curve = self._curve()
        logger.info("timed steps of up to %d tokens in %.1f s", curve.step_ms[-1][0], self._seconds)
        others = self._others_s / self._seconds
        if others < NOISY:
            self._curves.put(self._key, curve)
        else:
            logger.warning(
                "other processes took %.0f %% of the machine while steps were timed: they are timed "
                "again at the next start",
                100 * others,
            )
        return curve

    @property
    def _is_done(self) -> bool:
        is_priced = self._attended_ms is not None and self._state_ms is not None
        return is_priced and not self._pending and not self._rounds_left

    def _measure_next(self, probe: Probe) -> None:
        with self._watch.running():
            if self._pending:
                self._time_next(probe)
            elif self._attended_ms is None:
                self._attended_ms = self._price_attention(probe)
            elif self._state_ms is None:
                self._state_ms = self._price_state(probe)
            else:
                self._pending.extend(self._best)
                self._rounds_left -= 1

    def _curve(self) -> model_info.CostCurve:
        assert self._attended_ms is not None
        assert self._state_ms is not None
        points = {}
        for size, ms in self._best.items():
            own_ms = self._attended_ms * model_info.attended_pairs(0, self._shape(size)[0]) + self._state_ms
            points[size] = max(ms - own_ms, 0.5 * ms)
        return model_info.CostCurve(
            step_ms=_without_peaks(points), attended_ms=self._attended_ms, state_ms=self._state_ms
        )

    def _price_attention(self, probe: Probe) -> float:
        """Attempts halve in length, because this piece is the longest."""
        chunk = max(*self._best, model_info.TILE_TOKENS)
        context = self._context
        self._context = max(context // 2, min(_LEAST_CONTEXT, _LEAST_CHUNKS * chunk))
        return attention_price_ms(probe, self._info, self._watch, chunk=chunk, context=context)

    def _price_state(self, probe: Probe) -> float:
        size = max((n for n in self._best if n <= min(_STATES, self._info.max_seqs)), default=1)
        if size < 2:
            return 0.0
        times = []
        for _ in range(_ROUNDS):
            probe.close()
            times.append(probe.compute(dict.fromkeys(range(size), 1)))
        return max(0.0, min(times) - self._best[size]) / (size - 1)

    def _time_next(self, probe: Probe) -> None:
        size = self._pending[0]
        share = _SIZES_SHARE if self._attended_ms is None else 1.0
        if self._best:
            nearest = size if size in self._best else max(self._best)
            if not self._watch.allows(self._best[nearest] * size / nearest, share):
                self._pending.clear()
                return
        probe.close()
        if self._on_device and size not in self._best:  # its programs are compiled at the first use
            probe.compute(self._shape(size))
            probe.close()
        ms = probe.compute(self._shape(size))
        self._best[size] = min(ms, self._best.get(size, ms))
        self._pending.popleft()

    def _shape(self, size: int) -> dict[int, int]:
        """Models with states get one sequence, so that a step is one pass."""
        if self._info.state_bytes:
            return {0: size}
        decodes = min(size, _DECODES, self._info.max_seqs)
        return {0: size - decodes + 1} | dict.fromkeys(range(1, decodes), 1)


def curves(folder: Path) -> Measured[CurveKey, model_info.CostCurve]:
    return Measured(folder, CurveKey, model_info.CostCurve, is_sane)


def is_sane(curve: model_info.CostCurve) -> bool:
    sizes = [n for n, _ in curve.step_ms]
    return (
        bool(sizes)
        and sizes[0] >= 1
        and sizes == sorted(set(sizes))
        and all(math.isfinite(ms) and ms > 0 for _, ms in curve.step_ms)
        and math.isfinite(curve.attended_ms)
        and curve.attended_ms >= 0
    )


def _budget_s(info: model_info.ModelInfo) -> float:
    return min(1.0 + 9.0 * info.num_parameters / 10**9, 40.0)


def _without_peaks(points: dict[int, float]) -> tuple[tuple[int, float], ...]:
    """A size that costs much more than a larger one was disturbed."""
    curve: list[tuple[int, float]] = []
    least = math.inf
    for size in sorted(points, reverse=True):
        curve.append((size, min(points[size], _STEEPEST_FALL * least)))
        least = min(least, points[size])
    return tuple(reversed(curve))
