"""Measures the cost curve of a loaded model with its options, once: then it is on disk."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from openai_cpu_server.contract.cost import CostCurve, attended_pairs
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.llama.host.neighbours import NOISY, Neighbours
from openai_cpu_server.llama.measure.cell_prices import CONTEXT, CellPrices, Stopwatch
from openai_cpu_server.llama.measure.facts import MachineFacts, ModelFacts
from openai_cpu_server.llama.measure.measurements import Measurements
from openai_cpu_server.llama.measure.probe import Disturbed, Probe

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
_LEAST_CONTEXT = 256
"""Cells whose prices are known well enough."""


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
    """The curve out of `cache_dir`, else measured now and kept there. `on_progress` gets 0 to 1."""
    calibrator = Calibrator(backend, options, cache_dir, on_progress, neighbours)
    curve = calibrator.known() or calibrator.measure()
    assert curve is not None, "nothing else is wanted"
    on_progress(1.0)
    return curve


class Calibrator:
    """Measures once what steps of a backend cost, and keeps it in a folder.

    What was measured while the machine was busy with other things is used, but not kept. Nor is what is
    learnt while serving: it follows the last dozens of steps, whatever slowed them down, and is learnt again
    as soon.
    """

    def __init__(
        self,
        backend: Backend,
        options: EngineOptions,
        cache_dir: Path,
        on_progress: Callable[[float], None] = lambda fraction: None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._backend = backend
        self._key = CurveKey.of(backend.info, options)
        self._kept = Measurements(cache_dir)
        self._neighbours = neighbours or Neighbours()
        self._seconds = 0.0
        """That it has taken so far."""
        self._others_s = 0.0
        """Of these, what others took of the machine."""
        self._calibration = _Calibration(
            backend.info,
            Stopwatch(_budget_s(backend.info), on_progress),
            is_tiled=options.flash_attention and backend.info.kv_type in _TILED_KV_TYPES,
        )

    def known(self) -> CostCurve | None:
        """What an earlier one has kept."""
        curve = self._kept.get(self._key, CostCurve)
        return curve if curve is not None and is_sane(curve) else None

    def measure(self, is_wanted: Callable[[], bool] = lambda: False) -> CostCurve | None:
        """None: something else was wanted meanwhile; another call goes on.

        The backend must have no open slot. Takes about 10 s for 10^9 parameters, 40 s for 7 * 10^9 and more.
        """
        if not self._seconds:
            logger.info(
                "measuring what steps cost (once for a model and its options, about %.0f s)",
                _budget_s(self._backend.info),
            )
        try:
            with self._watching_neighbours(), Probe(self._backend, is_wanted) as probe:
                while not self._calibration.is_done:
                    self._calibration.go_on(probe)
        except Disturbed:
            return None
        curve = self._calibration.curve()
        logger.info("timed steps of up to %d tokens in %.1f s", curve.step_ms[-1][0], self._seconds)
        self._keep_if_quiet(curve)
        return curve

    @contextlib.contextmanager
    def _watching_neighbours(self) -> Iterator[None]:
        started = time.monotonic()
        self._neighbours.share()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            self._seconds += seconds
            self._others_s += seconds * self._neighbours.share()

    def _keep_if_quiet(self, curve: CostCurve) -> None:
        others = self._others_s / self._seconds
        if others < NOISY:
            self._kept.put(self._key, curve)
            return
        logger.warning(
            "other processes took %.0f %% of the machine while steps were timed: next time again",
            100 * others,
        )


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


def _budget_s(info: ModelInfo) -> float:
    return min(1.0 + 9.0 * info.num_parameters / 10**9, 40.0)


class _Calibration:
    """In pieces: each size, the prices of cells, each size again. A piece that is disturbed begins anew.

    The small sizes come first in each round: what time is left makes them more exact.
    """

    def __init__(self, info: ModelInfo, watch: Stopwatch, *, is_tiled: bool) -> None:
        self._info = info
        self._watch = watch
        self._is_tiled = is_tiled
        self._best: dict[int, float] = {}
        self._prices: CostCurve | None = None
        self._context = CONTEXT
        """Cells of its own that the next attempt at prices computes, at most."""
        largest = min(info.max_step_tokens, info.kv_tokens)
        self._pending = deque(n for n in _SIZES if n <= largest)
        """Sizes that the round has still to time."""
        self._rounds_left = _ROUNDS - 1

    @property
    def is_done(self) -> bool:
        return self._prices is not None and not self._pending and not self._rounds_left

    def go_on(self, probe: Probe) -> None:
        """With the next piece. Raises `Disturbed`."""
        with self._watch.running():
            if self._pending:
                self._time_next(probe)
            elif self._prices is None:
                self._prices = self._price_cells(probe)
            else:
                self._pending.extend(self._best)
                self._rounds_left -= 1

    def curve(self) -> CostCurve:
        assert self._prices is not None
        points = {n: self._bare(n, self._prices) for n in sorted(self._best)}
        return msgspec.structs.replace(self._prices, step_ms=_without_peaks(points))

    def _price_cells(self, probe: Probe) -> CostCurve:
        """The longest piece. Whenever it is disturbed the next attempt has half as many cells to compute."""
        context, self._context = self._context, max(self._context // 2, _LEAST_CONTEXT)
        prices = CellPrices(probe, self._info, self._watch, chunk=max(self._best), context=context)
        return prices.measure(tiled=self._is_tiled)

    def _time_next(self, probe: Probe) -> None:
        """If the time allows; the smallest always. Else the round is over."""
        size = self._pending[0]
        share = _SIZES_SHARE if self._prices is None else 1.0
        if self._best and not self._watch.allows(self._foreseen(size), share):
            self._pending.clear()
            return
        probe.close()
        ms = probe.compute(self._shape(size))
        self._best[size] = min(ms, self._best.get(size, ms))
        self._pending.popleft()

    def _foreseen(self, size: int) -> float:
        nearest = size if size in self._best else max(self._best)
        return self._best[nearest] * size / nearest

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
