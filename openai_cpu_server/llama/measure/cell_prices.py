"""Measures what a step pays for the cells that its tokens attend to, and for the cells that they skip."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from openai_cpu_server.contract.cost import ATTENTION_TILE_ROWS, TILE_TOKENS, CostCurve, TiledAttention
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.llama.measure.probe import Probe

CONTEXT = 1024
"""The most cells of its own context. Computing them takes most of the time."""
_CONTEXT_SHARE = 0.75
"""Share of the time after which the context must be computed."""
_STEP = TILE_TOKENS
"""The number of tokens in the timed steps: a whole tile."""
_COPIES = 15
"""The number of copies of the context that fill the pool with other sequences' cells."""
_REPEATS = 3
_RESERVE = 2 * _REPEATS * (_STEP + ATTENTION_TILE_ROWS)
"""Cells of the pool that the timed steps themselves need."""


class Stopwatch:
    """A budget of time, and the progress in it."""

    def __init__(self, budget_s: float, on_progress: Callable[[float], None]) -> None:
        self._used_s = 0.0
        """The time of the pieces that have ended."""
        self._since = time.monotonic()
        self._budget_s = budget_s
        self._on_progress = on_progress

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block. A block that ends with an exception counts as no time."""
        self._since = time.monotonic()
        yield
        self._used_s += time.monotonic() - self._since

    def allows(self, ms: float, share: float = 1.0) -> bool:
        """Whether `ms` more milliseconds stay within this share of the budget."""
        used_s = self._used_s + time.monotonic() - self._since
        self._on_progress(min(used_s / self._budget_s, 1.0))
        return used_s + ms / 1000 <= share * self._budget_s


class _Behind(NamedTuple):
    """The time of a step of `size` tokens in a pool that holds `cells` cells."""

    cells: int
    size: int
    ms: float

    @property
    def pairs(self) -> int:
        return self.cells * self.size

    def price(self, empty_ms: float) -> float:
        """Milliseconds per pair of a token and a cell; 0 if noise hides the price."""
        return max(0.0, (self.ms - empty_ms) / self.pairs)


class CellPrices:
    """Times the same steps three times: in an empty pool, behind a context, and beside other sequences'
    cells.

    Slot 0 holds the context, slot 1 the steps beside it, the others hold copies of the context.
    """

    def __init__(
        self, probe: Probe, info: ModelInfo, watch: Stopwatch, *, chunk: int, context: int = CONTEXT
    ) -> None:
        """`chunk`: tokens of the steps that compute the context;
        `context`: the most cells of its own."""
        self._probe = probe
        self._info = info
        self._watch = watch
        self._chunk = chunk
        self._context = min(context, info.kv_tokens - _RESERVE)

    def measure(self, *, tiled: bool) -> CostCurve:
        """A curve with prices, but without step times.
        All prices are 0 where the pool is too small for a context."""
        tiled = tiled and min(self._info.max_step_tokens, self._info.kv_tokens) >= ATTENTION_TILE_ROWS
        step, rows = min(_STEP, self._info.max_step_tokens), ATTENTION_TILE_ROWS
        if self._context < step:
            return CostCurve(step_ms=(), attended_ms=0.0, skipped_ms=0.0)
        sizes = [step, rows] if tiled else [step]
        before = [self._fresh(size) for size in sizes]
        self._compute_context()
        behind = [self._behind(0, size) for size in sizes]
        self._crowd()
        beside = self._behind(1, step) if self._info.max_seqs > 1 else None
        # Seconds later again: one noisy moment must not make the cells look free.
        step_ms, *rows_ms = (min(ms, self._fresh(size)) for ms, size in zip(before, sizes, strict=True))
        attended = behind[0].price(step_ms)
        skipped = beside.price(step_ms) if beside is not None else 0.0
        attention = None
        if tiled:  # that is what tiles are for; more would be noise
            attention = TiledAttention(rows, min(behind[1].price(rows_ms[0]), attended))
        return CostCurve(step_ms=(), attended_ms=attended, skipped_ms=min(skipped, attended), tiled=attention)

    def _fresh(self, size: int) -> float:
        """The best time of some steps in an empty pool."""
        times = []
        for _ in self._repeats():
            self._probe.close()
            times.append(self._probe.compute({0: size}))
        return min(times)

    def _compute_context(self) -> None:
        """Compute as long a context as the pool and the time allow."""
        self._probe.close()
        last_ms = 0.0
        while (left := self._context - self._probe.held(0)) > 0:
            if not self._watch.allows(last_ms, _CONTEXT_SHARE) and self._probe.held(0) > 0:
                return
            last_ms = self._probe.compute({0: min(self._chunk, left)})

    def _behind(self, slot: int, size: int) -> _Behind:
        """The best of some steps among the cells that are there."""
        found = [_Behind(self._probe.cells, size, self._probe.compute({slot: size})) for _ in self._repeats()]
        return min(found, key=lambda behind: behind.ms / behind.pairs)

    def _crowd(self) -> None:
        """Copy the context to other slots, where copying costs next to nothing."""
        room = (self._info.kv_tokens - self._probe.cells - _RESERVE) // self._probe.held(0)
        slots = range(2, 2 + min(_COPIES, self._info.max_seqs - 2, room))
        if self._info.can_share and slots:
            self._probe.copy(0, slots)

    def _repeats(self) -> Iterator[int]:
        """Yield the first repeat always, further ones while there is time."""
        started = time.monotonic()
        for repeat in range(_REPEATS):
            if repeat and not self._watch.allows(1000 * (time.monotonic() - started) / repeat):
                return
            yield repeat
