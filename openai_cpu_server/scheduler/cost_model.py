"""Prediction of the time of a step and its copies of KV cells, which learns from actual times. Constants are
results of `scripts/regress.py streams cost_model.NAME`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from openai_cpu_server.contract.model_info import TILE_TOKENS, CostCurve
from openai_cpu_server.contract.step import Restore, RestoreState, Save, SaveState, Step, StepResult, Verb
from openai_cpu_server.scheduler.plan import Pass, StepCost, StepPrices, StepSize, equal_passes

_WORTH_PADDING = 0.98
"""Maximum relative time of a padded step, because steps vary by 1 to 2 %. 0.9 to 1.0 changes nothing."""
_HARDLY_LONGER = 1.1
"""Maximum factor of a step's time for tokens needed anyway. At 1.0 first tokens come 11 % sooner and 8 % less
is computed; at 1.3 3 % more."""
_LEAST_CHUNK = 256
_AS_CHEAP = 1.03
"""Maximum factor of a token's time for a smaller chunk, for whose end new requests wait. With AMX steps of
330 tokens read 1.1 times as fast as 256, and as fast as 512 (1 B)."""
_RATE_ALL, _RATE_TERM = 0.05, 0.1
"""Shares of a step's error (as a logarithm) that move the factor of everything, and of its terms. A fifth
makes stalls 10 % longer; four times as much delays first tokens by 7 %."""
_LARGEST_ERROR = math.log(1.5)
"""Limit of one step's error, because of noisy neighbours. 1.1 to 4 times changes at most 3 %."""
_FURTHEST = math.log(8.0)
"""Limit of the distance from measured costs. No busy machine was ever off by a factor of 8."""
_COPIED_TOKEN_MS = 0.003
"""Initial value: 1,024 tokens of 34 MB take 3 ms each way (docs/measurements.md)."""
_COPY_RATE = 0.1

_READ_TOKENS = 128
"""Size of a prefill step: the largest that is always measured."""

_GUESS = CostCurve(
    step_ms=(
        (1, 19.0),
        (2, 26.0),
        (4, 34.0),
        (8, 53.0),
        (12, 67.0),
        (16, 81.0),
        (20, 103.0),
        (64, 190.0),
        (128, 320.0),
        (256, 600.0),
    ),
    attended_ms=0.0004,
)
"""A model of 10^9 parameters (Q4_K_M, f16 cells) on two cores of a Zen 5, with our first kernels."""


class CostModel:
    """ms = all * (tile[n] * table[n] + attention * price * attended pairs + state * price * states). The
    sizes of a tile share a factor, so that learning keeps the measured curve's shape."""

    def __init__(self, curve: CostCurve) -> None:
        assert curve.step_ms, "a curve has points"
        self._curve = _scaled(curve, 1.0)
        self._measured = _table(self._curve.step_ms)
        self._last = len(self._measured) - 1
        self._slope = _slope(self._measured)
        self._all = _Factor(_RATE_ALL)
        self._attention = _Factor(_RATE_TERM)
        self._states = _Factor(_RATE_TERM)
        self._tiles: dict[int, _Factor] = {}
        self._learned = list(self._measured)

    @classmethod
    def guess(cls, num_parameters: int = 10**9) -> CostModel:
        """Scale the curve of one known machine by the number of parameters. Some dozens of steps refine
        it."""
        return cls(_scaled(_GUESS, max(num_parameters, 10**6) / 10**9))

    @property
    def curve(self) -> CostCurve:
        learned = msgspec.structs.replace(self._curve, step_ms=tuple(enumerate(self._learned))[1:])
        return _scaled(learned, self._all.value, self._attention.value, self._states.value)

    def predict_ms(self, size: StepSize, attended: int = 0) -> float:
        passes = _passes(size)
        ms = sum(self._step_ms(each.tokens) for each in passes)
        return self._all.value * (ms + self._attention_ms(attended) + self._states_ms(passes))

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        larger = range(num_tokens + 1, self._growth_limit(num_tokens, limit) + 1)
        if not larger:
            return num_tokens
        size = min(larger, key=self._learned.__getitem__)
        return size if self._learned[size] < _WORTH_PADDING * self._learned[num_tokens] else num_tokens

    def free_size(self, num_tokens: int, limit: int) -> int:
        larger = range(self._growth_limit(num_tokens, limit), num_tokens, -1)
        longest_ms = _HARDLY_LONGER * self._learned[min(num_tokens, self._last)]
        return next((n for n in larger if self._learned[n] <= longest_ms), num_tokens)

    def chunk_size(self, limit: int) -> int:
        measured = range(_LEAST_CHUNK, min(limit, self._last) + 1, TILE_TOKENS)
        if not measured:
            return limit
        token_ms = {n: self._learned[n] / n for n in measured}
        longest_ms = _AS_CHEAP * min(token_ms.values())
        return next(n for n in measured if token_ms[n] <= longest_ms)

    def _growth_limit(self, num_tokens: int, limit: int) -> int:
        return min(limit, -(-num_tokens // TILE_TOKENS) * TILE_TOKENS, self._last)

    def refine(self, size: StepSize, attended: int, actual_ms: float) -> None:
        """Learn from an uninterrupted step. Each term learns by its share of the predicted time."""
        passes = [each for each in _passes(size) if each.tokens > 0]
        if not passes or actual_ms <= 0:
            return
        predicted = max(self.predict_ms(size, attended), 1e-6)
        error = math.log(actual_ms / predicted)
        error = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        share = self._all.value * error / predicted
        tiles = [(each.tokens, share * self._step_ms(each.tokens)) for each in passes]
        attention, states = share * self._attention_ms(attended), share * self._states_ms(passes)
        self._all.learn(error)
        self._attention.learn(attention)
        self._states.learn(states)
        for num_tokens, part in tiles:
            self._learn_tile(num_tokens, part)

    def _learn_tile(self, num_tokens: int, error: float) -> None:
        first = (min(num_tokens, self._last) - 1) // TILE_TOKENS * TILE_TOKENS + 1
        factor = self._tiles.setdefault(first, _Factor(_RATE_TERM))
        factor.learn(error)
        sizes = slice(first, first + TILE_TOKENS)
        self._learned[sizes] = [factor.value * ms for ms in self._measured[sizes]]

    def _attention_ms(self, attended: int) -> float:
        return self._attention.value * self._curve.attended_ms * attended

    def _states_ms(self, passes: Iterable[Pass]) -> float:
        return self._states.value * self._curve.state_ms * sum(each.states for each in passes)

    def _step_ms(self, num_tokens: int) -> float:
        if num_tokens <= self._last:
            return self._learned[num_tokens]
        factor = self._tiles.get((self._last - 1) // TILE_TOKENS * TILE_TOKENS + 1)
        rise = (num_tokens - self._last) * self._slope
        return self._learned[-1] + (rise if factor is None else rise * factor.value)


_MEMORY_BOUND = 0.77
"""Share of a step's first token that waits for memory. 1.04 B with one thread instead of two: 1.23 times as
long for 1 token, 1.7 for 4, 1.95 for 16."""


class ThreadCosts:
    """A `StepCost` for the present number of threads. Each number learns separately."""

    def __init__(self, full: CostModel, *, threads: int = 1) -> None:
        self._most = threads
        self._models = {threads: full}
        self.use(threads)

    def use(self, threads: int) -> None:
        if threads not in self._models:
            full, factor = self._models[self._most].curve, self._most / threads
            slowed = ((n, ms * (1 + (factor - 1) * (1 - _MEMORY_BOUND / n))) for n, ms in full.step_ms)
            attended_ms = factor * full.attended_ms
            curve = CostCurve(step_ms=tuple(slowed), attended_ms=attended_ms, state_ms=full.state_ms)
            self._models[threads] = CostModel(curve)
        self._now, model = threads, self._models[threads]
        self.predict_ms, self.refine = model.predict_ms, model.refine
        self.cheapest_size, self.free_size = model.cheapest_size, model.free_size
        self.chunk_size = model.chunk_size

    def measured(self, full: CostModel) -> None:
        self._models = {self._most: full}
        self.use(self._now)

    def slowdown(self, size: StepSize, attended: int = 0) -> float:
        alone_ms = self._models[self._most].predict_ms(size, attended)
        return self.predict_ms(size, attended) / alone_ms if alone_ms > 0 else 1.0


class _Factor:
    __slots__ = ("_log", "_rate", "value")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._log = 0.0
        self.value = 1.0

    def learn(self, error: float) -> None:
        self._log = min(max(self._log + self._rate * error, -_FURTHEST), _FURTHEST)
        self.value = math.exp(self._log)


def _passes(size: StepSize) -> Sequence[Pass]:
    return (Pass(size, 0),) if isinstance(size, int) else size


def _scaled(curve: CostCurve, factor: float, attention: float = 1.0, states: float = 1.0) -> CostCurve:
    return CostCurve(
        step_ms=tuple((n, factor * max(0.0, ms)) for n, ms in curve.step_ms),
        attended_ms=factor * attention * max(0.0, curve.attended_ms),
        state_ms=factor * states * max(0.0, curve.state_ms),
    )


def _table(points: Sequence[tuple[int, float]]) -> list[float]:
    measured = dict(points)
    knots = sorted((_stairs(measured) | measured | {0: 0.0}).items())
    table = [0.0]
    for (start, low), (end, high) in pairwise(knots):
        step = (high - low) / (end - start)
        table += [low + step * n for n in range(1, end - start)] + [high]
    first = knots[1]
    # A step costs something whatever its size: below the first point it costs what that does.
    table[1 : first[0]] = [first[1]] * (first[0] - 1)
    return table


def _stairs(measured: Mapping[int, float]) -> dict[int, float]:
    """A tile that was measured at its ends only is assumed to climb as the second one does."""
    ends = {n: ms for n, ms in measured.items() if n % TILE_TOKENS == 0 and n >= TILE_TOKENS}
    shape = _shape(measured)
    knots = dict(ends)
    for (start, low), (end, high) in pairwise(sorted(ends.items())):
        rise = (high - low) * TILE_TOKENS / (end - start)
        for base in range(start, end, TILE_TOKENS):
            at_base = low + rise * (base - start) / TILE_TOKENS
            knots[base] = at_base
            if not any(base < n < base + TILE_TOKENS for n in measured):
                knots |= {base + n: at_base + share * rise for n, share in shape.items()}
    return knots


def _shape(measured: Mapping[int, float]) -> dict[int, float]:
    """Tokens from the start of the second tile -> share of its rise; {} if not measured."""
    low, high = measured.get(TILE_TOKENS), measured.get(2 * TILE_TOKENS)
    if low is None or high is None or high <= low:
        return {}
    inside = {n - TILE_TOKENS: ms for n, ms in measured.items() if TILE_TOKENS < n < 2 * TILE_TOKENS}
    return {n: min(max((ms - low) / (high - low), 0.0), 1.0) for n, ms in inside.items()}


def _slope(table: Sequence[float]) -> float:
    """Milliseconds per token in the latter half of the table, or in all of it if that half falls."""
    last = len(table) - 1
    half = last // 2
    slope = (table[last] - table[half]) / (last - half)
    return slope if slope > 0 else table[last] / last


class CopyPrice:
    def __init__(self, state_tokens: int = 0) -> None:
        self._token_ms = _COPIED_TOKEN_MS
        self._state_tokens = state_tokens

    @property
    def state_ms(self) -> float:
        return self._token_ms * self._state_tokens

    def predict_ms(self, verbs: Iterable[Verb]) -> float:
        return self._token_ms * self._num_copied(verbs)

    def learn(self, verbs: Iterable[Verb], elapsed_ms: float) -> None:
        num_tokens = self._num_copied(verbs)
        if num_tokens:
            self._token_ms += _COPY_RATE * (elapsed_ms / num_tokens - self._token_ms)

    def _num_copied(self, verbs: Iterable[Verb]) -> int:
        num_tokens = 0
        for verb in verbs:
            match verb:
                case Save(start=start, end=end) | Restore(start=start, end=end):
                    num_tokens += end - start
                case SaveState() | RestoreState():
                    num_tokens += self._state_tokens
        return num_tokens


_NEW = 0.2
_GUESSED_SLOWDOWN = 1.1
"""Measured, as the next one, at 1 B, 8 sequences, rank 16, all products (docs/models.md)."""
_GUESSED_SWITCH_MS = 5.0
_MOST = 4.0
"""Ratio of actual to predicted time beyond which a step was disturbed."""


@dataclass
class AdapterSlowdown:
    base: StepCost
    factor: float = _GUESSED_SLOWDOWN

    def predict_ms(self, size: StepSize, attended: int = 0) -> float:
        return self.factor * self.base.predict_ms(size, attended)

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        return self.base.cheapest_size(num_tokens, limit)

    def free_size(self, num_tokens: int, limit: int) -> int:
        return self.base.free_size(num_tokens, limit)

    def chunk_size(self, limit: int) -> int:
        return self.base.chunk_size(limit)

    def refine(self, size: StepSize, attended: int, actual_ms: float) -> None:
        plain_ms = self.base.predict_ms(size, attended)
        if plain_ms > 0:
            seen = min(max(actual_ms / plain_ms, 1.0), _MOST)
            self.factor += _NEW * (seen - self.factor)


class LearnedCosts:
    def __init__(
        self,
        model: StepCost,
        *,
        max_tokens: int,
        fills_tiles: bool,
        equal_parts: bool = False,
        state_tokens: int = 0,
    ) -> None:
        """`equal_parts`: as in `StepCapacity`; padding would be another part."""
        self.model = model
        self._max_tokens = max_tokens
        self._fills_tiles = fills_tiles and not equal_parts
        self._equal_parts = equal_parts
        self.switch_ms = _GUESSED_SWITCH_MS
        self._slowdowns: dict[str, AdapterSlowdown] = {}
        self._copies = CopyPrice(state_tokens)
        self._computed_with: str | None = None

    def of(self, adapter: str | None) -> StepCost:
        if adapter is None:
            return self.model
        slowdown = self._slowdowns.setdefault(adapter, AdapterSlowdown(self.model))
        slowdown.base = self.model
        return slowdown

    def prices(self, adapter: str | None) -> StepPrices:
        return StepPrices(self.of(adapter), self._max_tokens, fills_tiles=self._fills_tiles)

    @property
    def state_in_tokens(self) -> float:
        return self._copies.state_ms * _READ_TOKENS / self.model.predict_ms(_READ_TOKENS)

    def predict_ms(self, step: Step, attended: int) -> float:
        copying_ms = self._copies.predict_ms(step.verbs)
        if not step.spans:
            return copying_ms
        size: StepSize = step.num_tokens + step.padding
        if self._equal_parts:
            size = equal_passes(span.num_tokens for span in step.spans)
        switch_ms = self.switch_ms if self._is_switch(step) else 0.0
        return copying_ms + switch_ms + self.of(step.adapter).predict_ms(size, attended)

    def executed(self, step: Step) -> None:
        if step.spans:
            self._computed_with = step.adapter

    def learn_copying(self, step: Step, result: StepResult) -> None:
        self._copies.learn(step.verbs, result.verbs_ms)

    def learn(
        self, step: Step, result: StepResult, *, size: StepSize, attended: int, elapsed_ms: float
    ) -> float | None:
        """`elapsed_ms` excludes verbs and includes drafting. Return the predicted time, or None if the step
        teaches only the cost of switching."""
        cost = self.of(step.adapter)
        predicted_ms = cost.predict_ms(size, attended) + result.drafting_ms
        if self._is_switch(step):
            switch_ms = min(max(elapsed_ms - predicted_ms, 0.0), _MOST * max(self.switch_ms, 1.0))
            self.switch_ms += _NEW * (switch_ms - self.switch_ms)
            return None
        cost.refine(size, attended, elapsed_ms - result.drafting_ms)
        return predicted_ms

    def forget_adapter(self, key: str) -> None:
        self._slowdowns.pop(key, None)

    def _is_switch(self, step: Step) -> bool:
        return step.adapter != self._computed_with
