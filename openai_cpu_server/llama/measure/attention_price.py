"""Measures what a step pays for the cells that its tokens attend to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from openai_cpu_server.contract.cost import TILE_TOKENS
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.llama.measure.probe import Probe

CONTEXT = 1024
"""The most cells of its own context. Computing them takes most of the time."""
_CONTEXT_SHARE = 0.75
"""Share of the time after which the context must be computed."""
_STEP = TILE_TOKENS
"""The number of tokens in the timed steps: a whole tile of a prompt, which has nearly all of the pairs."""
_REPEATS = 3
_RESERVE = _REPEATS * _STEP
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


class AttentionPrice:
    """Times the same steps twice: in an empty pool, and behind a context.

    Slot 0 holds the context.
    """

    def __init__(
        self, probe: Probe, info: ModelInfo, watch: Stopwatch, *, chunk: int, context: int = CONTEXT
    ) -> None:
        """`chunk`: tokens of the steps that compute the context;
        `context`: the most cells of its own."""
        self._probe = probe
        self._watch = watch
        self._chunk = chunk
        self._step = min(_STEP, info.max_step_tokens)
        self._context = min(context, info.kv_tokens - _RESERVE)

    def measure(self) -> float:
        """Milliseconds per pair of a token and a cell that it attends to.

        It is 0 where the pool is too small for a context, or where noise hides the price.
        """
        if self._context < self._step:
            return 0.0
        fresh_ms = self._fresh()
        self._compute_context()
        behind = [self._behind() for _ in self._repeats()]
        # Seconds later again: one noisy moment must not make the cells look free.
        fresh_ms = min(fresh_ms, self._fresh())
        return max(0.0, min((ms - fresh_ms) / pairs for ms, pairs in behind))

    def _fresh(self) -> float:
        """The best time of some steps in an empty pool."""
        times = []
        for _ in self._repeats():
            self._probe.close()
            times.append(self._probe.compute({0: self._step}))
        return min(times)

    def _compute_context(self) -> None:
        """Compute as long a context as the pool and the time allow."""
        self._probe.close()
        last_ms = 0.0
        while (left := self._context - self._probe.held(0)) > 0:
            if not self._watch.allows(last_ms, _CONTEXT_SHARE) and self._probe.held(0) > 0:
                return
            last_ms = self._probe.compute({0: min(self._chunk, left)})

    def _behind(self) -> tuple[float, int]:
        """The time of a step behind the context, and its pairs of a token and a cell."""
        pairs = self._probe.held(0) * self._step
        return self._probe.compute({0: self._step}), pairs

    def _repeats(self) -> Iterator[int]:
        """Yield the first repeat always, further ones while there is time."""
        started = time.monotonic()
        for repeat in range(_REPEATS):
            if repeat and not self._watch.allows(1000 * (time.monotonic() - started) / repeat):
                return
            yield repeat
