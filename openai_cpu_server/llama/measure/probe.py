"""Timed steps of a backend, and the cost of attended cells."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from openai_cpu_server.contract.model_info import TILE_TOKENS, ModelInfo
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.contract.step import (
    Backend,
    Close,
    Drop,
    Open,
    Restore,
    RestoreState,
    Save,
    SaveState,
    Span,
    Step,
    Verb,
)

_SAMPLING = Sampling(seed=0)
"""OpenAI's defaults, because sampling is part of a step's cost."""
_BLOCK, _STATE = -1, -2
"""The cache's numbers are not negative."""


class Disturbed(Exception):
    """Other work came up."""


class Probe:
    """Times steps while no request is served. Closes its slots."""

    def __init__(self, backend: Backend, is_wanted: Callable[[], bool] = lambda: False) -> None:
        """`is_wanted`: True if there is other work."""
        self._backend = backend
        self._is_wanted = is_wanted
        self._held: dict[int, int] = {}
        self._saved = 0
        self._random = random.Random(0)

    def held(self, slot: int) -> int:
        return self._held.get(slot, 0)

    def compute(self, sizes: Mapping[int, int]) -> float:
        """Time a step that adds tokens to slots and samples. Raises `Disturbed`."""
        if self._is_wanted():
            raise Disturbed
        self._open(slot for slot in sizes if slot not in self._held)
        token = partial(self._random.randrange, self._backend.info.vocab_size)
        spans = tuple(
            Span(slot, self._held[slot], tuple(token() for _ in range(size)), sample=True)
            for slot, size in sizes.items()
        )
        step = Step(spans=spans, may_be_interrupted=True)
        started = time.perf_counter()
        result = self._backend.execute(step)
        seconds = time.perf_counter() - started
        if result.interrupted:
            raise Disturbed
        for slot, size in sizes.items():
            self._held[slot] += size
        return 1000 * seconds

    def copy(self, source: int, slots: Sequence[int]) -> None:
        self.save(source)
        self.restore(slots)
        self.drop()

    def save(self, source: int) -> None:
        self._saved = self._held[source]
        state = (SaveState(source, self._saved, _STATE),) if self._has_states else ()
        self._do(Save(source, 0, self._saved, _BLOCK), *state)

    def restore(self, slots: Sequence[int]) -> None:
        self._open(slots)
        for slot in slots:
            state = (RestoreState(_STATE, slot, self._saved),) if self._has_states else ()
            self._do(Restore(_BLOCK, slot, 0, self._saved), *state)
        self._held.update(dict.fromkeys(slots, self._saved))

    def drop(self) -> None:
        self._do(Drop(_BLOCK), *((Drop(_STATE),) if self._has_states else ()))
        self._saved = 0

    def close(self) -> None:
        self._do(*(Close(slot) for slot in self._held))
        self._held.clear()

    @property
    def _has_states(self) -> bool:
        return self._backend.info.state_bytes > 0

    def _do(self, *verbs: Verb) -> None:
        self._backend.execute(Step(verbs=verbs))

    def _open(self, slots: Iterable[int]) -> None:
        opening = tuple(Open(slot, _SAMPLING, prompt=()) for slot in slots)
        if opening:
            self._do(*opening)
            self._held.update({verb.slot: 0 for verb in opening})

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, Disturbed):
            self.close()
            if self._saved:
                self.drop()


CONTEXT = 1024
"""Most cells."""
_CONTEXT_SHARE = 0.75
_STEP = TILE_TOKENS
"""Whole tile of a prompt, which has nearly all of the pairs."""
_REPEATS = 3
_RESERVE = _REPEATS * _STEP


@dataclass(eq=False)
class Stopwatch:
    budget_s: float
    on_progress: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    _used_s: float = 0.0

    def __post_init__(self) -> None:
        self._since = self.clock()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block that does not fail."""
        self._since = self.clock()
        yield
        self._used_s += self.clock() - self._since

    def allows(self, ms: float, share: float = 1.0) -> bool:
        used_s = self._used_s + self.clock() - self._since
        self.on_progress(min(used_s / self.budget_s, 1.0))
        return used_s + ms / 1000 <= share * self.budget_s


def attention_price_ms(
    probe: Probe, info: ModelInfo, watch: Stopwatch, *, chunk: int, context: int = CONTEXT
) -> float:
    """Return the milliseconds per pair of a token and an attended cell, or 0 if noise or a small pool hides
    them.

    The same steps are timed in an empty pool and behind a context. `chunk`: tokens of the context's steps.
    """
    step, context = min(_STEP, info.max_step_tokens), min(context, info.kv_tokens - _RESERVE)
    if context < step:
        return 0.0

    def repeats() -> Iterator[int]:
        started = time.monotonic()
        for repeat in range(_REPEATS):
            if repeat and not watch.allows(1000 * (time.monotonic() - started) / repeat):
                return
            yield repeat

    def step_in_empty_pool() -> float:
        probe.close()
        return probe.compute({0: step})

    fresh_ms = min(step_in_empty_pool() for _ in repeats())
    probe.close()
    last_ms = 0.0
    while (left := context - probe.held(0)) > 0:
        if not watch.allows(last_ms, _CONTEXT_SHARE) and probe.held(0) > 0:
            break
        last_ms = probe.compute({0: min(chunk, left)})
    times = []
    for _ in repeats():
        pairs = probe.held(0) * step
        times.append((probe.compute({0: step}), pairs))
    # Seconds later again: one noisy moment must not make the cells look free.
    fresh_ms = min(fresh_ms, *(step_in_empty_pool() for _ in repeats()))
    return max(0.0, min((ms - fresh_ms) / pairs for ms, pairs in times))
