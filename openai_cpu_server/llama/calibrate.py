"""Measures the cost curve of a loaded model with its options, once: then it is on disk."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from openai_cpu_server.contract.cost import CostCurve, attended_pairs
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.llama.cell_prices import CellPrices, Stopwatch
from openai_cpu_server.llama.facts import MachineFacts, ModelFacts
from openai_cpu_server.llama.measurements import Measurements
from openai_cpu_server.llama.neighbours import NOISY, Neighbours
from openai_cpu_server.llama.probe import Probe

logger = logging.getLogger(__name__)

_VERSION = 2
"""Of the way to measure: a change makes old curves void."""
_SIZES = (1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64, 128, 256)
_DECODES = 32
"""Sequences in a measured step at most; the rest is a prompt's. Each has its token sampled."""
_ROUNDS = 4
_TILED_KV_TYPES = ("f16", "f32")
"""ggml attends in tiles to these only."""
_STEEPEST_FALL = 1.6
"""What a size costs of a larger one at most: filling a tile of 16 has been seen to save a third."""
_SIZES_SHARE = 0.5
"""Of the time, for the first round over all sizes."""


class CurveKey(msgspec.Struct, frozen=True, kw_only=True):
    """All that a curve depends on."""

    version: int
    model: ModelFacts
    num_parameters: int
    machine: MachineFacts
    threads: int
    threads_batch: int | None
    kv_type: str
    repack: bool | None
    flash_attention: bool
    kv_tokens: int
    """A power of two: a pool that is a little larger changes nothing."""
    max_seqs: int
    max_step_tokens: int

    @classmethod
    def of(cls, info: ModelInfo, options: EngineOptions) -> CurveKey:
        return cls(
            version=_VERSION,
            model=ModelFacts.of(Path(info.path)),
            num_parameters=info.num_parameters,
            machine=MachineFacts.here(),
            threads=info.threads,
            threads_batch=options.threads_batch,
            kv_type=info.kv_type,
            repack=options.repack,
            flash_attention=options.flash_attention,
            kv_tokens=1 << (info.kv_tokens.bit_length() - 1),
            max_seqs=info.max_seqs,
            max_step_tokens=info.max_step_tokens,
        )


def cost_curve(
    backend: Backend,
    options: EngineOptions,
    cache_dir: Path,
    on_progress: Callable[[float], None] = lambda fraction: None,
    neighbours: Neighbours | None = None,
) -> CostCurve:
    """The curve out of `cache_dir`, else measured now and kept there. `on_progress` gets 0 to 1.

    The backend must be fresh, with no open slot and no saved block; so it is handed back. What was measured
    while the machine was busy with other things is used, but not kept. Nor is what is learnt while serving:
    it follows the last dozens of steps, whatever slowed them down, and is learnt again as soon.
    """
    key, kept = CurveKey.of(backend.info, options), Measurements(cache_dir)
    curve = kept.get(key, CostCurve)
    if curve is None or not is_sane(curve):
        neighbours = neighbours or Neighbours()
        curve = measure_curve(backend, options, on_progress)
        _keep_if_quiet(kept, key, curve, neighbours.share())
    on_progress(1.0)
    return curve


def known_curves(model: Path, cache_dir: Path) -> list[tuple[CurveKey, CostCurve]]:
    """What was measured of this model on this machine, with whatever options; the newest first.

    Raises `StartupError` if that is no model.
    """
    facts, machine = ModelFacts.of(model), MachineFacts.here()
    return [
        (key, curve)
        for key, curve in Measurements(cache_dir).all_of(CurveKey, CostCurve)
        if (key.version, key.model, key.machine) == (_VERSION, facts, machine) and is_sane(curve)
    ]


def _keep_if_quiet(kept: Measurements, key: CurveKey, curve: CostCurve, others: float) -> None:
    if others < NOISY:
        kept.put(key, curve)
        return
    logger.warning(
        "other processes took %.0f %% of the machine while steps were timed: next time again", 100 * others
    )


def is_sane(curve: CostCurve) -> bool:
    """Whether a curve from a file can be one."""
    sizes = [n for n, _ in curve.step_ms]
    prices = [curve.attended_ms, curve.skipped_ms, *([curve.tiled.pair_ms] if curve.tiled else [])]
    return (
        bool(sizes)
        and sizes[0] >= 1
        and sizes == sorted(set(sizes))
        and all(math.isfinite(ms) and ms > 0 for _, ms in curve.step_ms)
        and all(math.isfinite(ms) and ms >= 0 for ms in prices)
        and (curve.tiled is None or curve.tiled.rows > 0)
    )


def measure_curve(
    backend: Backend, options: EngineOptions, on_progress: Callable[[float], None]
) -> CostCurve:
    """About 10 s for 10^9 parameters, 40 s for 7 * 10^9 and more."""
    started = time.monotonic()
    budget_s = min(1.0 + 9.0 * backend.info.num_parameters / 10**9, 40.0)
    logger.info("measuring what steps cost (once for a model and its options, about %.0f s)", budget_s)
    tiled = options.flash_attention and backend.info.kv_type in _TILED_KV_TYPES
    with Probe(backend) as probe:
        curve = _Calibration(probe, backend.info, Stopwatch(budget_s, on_progress)).curve(tiled=tiled)
    logger.info("timed steps of up to %d tokens in %.1f s", curve.step_ms[-1][0], time.monotonic() - started)
    return curve


class _Calibration:
    """The small sizes come first, and in each round again: what time is left makes them more exact."""

    def __init__(self, probe: Probe, info: ModelInfo, watch: Stopwatch) -> None:
        self._probe = probe
        self._info = info
        self._watch = watch
        self._best: dict[int, float] = {}

    def curve(self, *, tiled: bool) -> CostCurve:
        largest = min(self._info.max_step_tokens, self._info.kv_tokens)
        self._round([n for n in _SIZES if n <= largest], _SIZES_SHARE)
        prices = CellPrices(self._probe, self._info, self._watch, chunk=max(self._best)).measure(tiled=tiled)
        for _ in range(_ROUNDS - 1):
            self._round(list(self._best), 1.0)
        points = {n: self._bare(n, prices) for n in sorted(self._best)}
        return msgspec.structs.replace(prices, step_ms=_without_peaks(points))

    def _round(self, sizes: list[int], share: float) -> None:
        """As many of the sizes as the time allows, from the smallest on; one at least."""
        for size in sizes:
            if self._best and not self._watch.allows(self._foreseen(size), share):
                return
            ms = self._time(size)
            self._best[size] = min(ms, self._best.get(size, ms))

    def _foreseen(self, size: int) -> float:
        nearest = size if size in self._best else max(self._best)
        return self._best[nearest] * size / nearest

    def _time(self, size: int) -> float:
        self._probe.close()
        return self._probe.compute(self._shape(size))

    def _shape(self, size: int) -> dict[int, int]:
        decodes = min(size, _DECODES, self._info.max_seqs)
        return {0: size - decodes + 1} | dict.fromkeys(range(1, decodes), 1)

    def _bare(self, size: int, prices: CostCurve) -> float:
        """Without what the step's own prompt attended to."""
        own = attended_pairs(0, self._shape(size)[0])
        return max(self._best[size] - prices.attention_ms(size, own, size), 0.5 * self._best[size])


def _without_peaks(points: dict[int, float]) -> tuple[tuple[int, float], ...]:
    """No size costs so much more than a larger one: that was somebody else's doing."""
    kept: list[tuple[int, float]] = []
    least = math.inf
    for size in sorted(points, reverse=True):
        kept.append((size, min(points[size], _STEEPEST_FALL * least)))
        least = min(least, points[size])
    return tuple(reversed(kept))
