"""What steps have cost, and will: those of each adapter, switches between adapters, and copies of cells."""

from __future__ import annotations

from dataclasses import dataclass

from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.scheduler.cost_model import CopyPrice
from openai_cpu_server.scheduler.plan import StepCost, StepPrices

_NEW = 0.2
"""The weight of a new observation: some five count."""
_GUESSED_SLOWDOWN = 1.1
"""Measured at 1 B, 8 sequences, rank 16, all products (docs/models.md)."""
_GUESSED_SWITCH_MS = 5.0
"""The same."""
_MOST = 4.0
"""A step that takes more than so many times what was predicted was disturbed, and teaches so much only."""


@dataclass
class AdapterSlowdown:
    """How many times as long steps with one adapter take. A `StepCost`, over the base's."""

    base: StepCost
    factor: float = _GUESSED_SLOWDOWN

    def predict_ms(self, num_tokens: int, attended: int = 0) -> float:
        return self.factor * self.base.predict_ms(num_tokens, attended)

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        return self.base.cheapest_size(num_tokens, limit)

    def free_size(self, num_tokens: int, limit: int) -> int:
        return self.base.free_size(num_tokens, limit)

    def refine(self, num_tokens: int, attended: int, actual_ms: float) -> None:
        plain_ms = self.base.predict_ms(num_tokens, attended)
        if plain_ms > 0:
            seen = min(max(actual_ms / plain_ms, 1.0), _MOST)
            self.factor += _NEW * (seen - self.factor)


class AdapterCosts:
    """The prices of all adapters, and what it takes to change from one to another."""

    def __init__(self) -> None:
        self.switch_ms = _GUESSED_SWITCH_MS
        self._slowdowns: dict[str, AdapterSlowdown] = {}

    def of(self, key: str | None, base: StepCost) -> StepCost:
        """The cost of steps with this adapter. `base`: of steps without one; it may change at any time."""
        if key is None:
            return base
        slowdown = self._slowdowns.setdefault(key, AdapterSlowdown(base))
        slowdown.base = base
        return slowdown

    def learn_switch(self, ms: float) -> None:
        """A step took so much longer than predicted because of a switch."""
        seen = min(max(ms, 0.0), _MOST * max(self.switch_ms, 1.0))
        self.switch_ms += _NEW * (seen - self.switch_ms)

    def forget(self, key: str) -> None:
        self._slowdowns.pop(key, None)


class LearnedCosts:
    """The scheduler asks it for the prices that it plans with, and tells it how long each step took."""

    def __init__(self, model: StepCost, *, max_tokens: int, fills_tiles: bool) -> None:
        """`max_tokens`: the largest step."""
        self.model = model
        """Of steps without an adapter; it may be replaced between two steps."""
        self._max_tokens = max_tokens
        self._fills_tiles = fills_tiles
        self._adapters = AdapterCosts()
        self._copies = CopyPrice()
        self._computed_with: str | None = None
        """The adapter of the last step that computed something."""

    @property
    def switch_ms(self) -> float:
        """What it takes to compute with another adapter than the last step did."""
        return self._adapters.switch_ms

    def of(self, adapter: str | None) -> StepCost:
        return self._adapters.of(adapter, self.model)

    def prices(self, adapter: str | None) -> StepPrices:
        return StepPrices(self.of(adapter), self._max_tokens, fills_tiles=self._fills_tiles)

    def predict_ms(self, step: Step, attended: int) -> float:
        """How long the step will take, without drafting. `attended`: pairs of a token and a cell."""
        copying_ms = self._copies.predict_ms(step.verbs)
        size = step.num_tokens + step.padding
        if not size:
            return copying_ms
        switch_ms = self.switch_ms if self._is_switch(step) else 0.0
        return copying_ms + switch_ms + self.of(step.adapter).predict_ms(size, attended)

    def executed(self, step: Step) -> None:
        """The step was executed, or interrupted: the next one is computed with its adapter, or switches."""
        if step.spans:
            self._computed_with = step.adapter

    def learn_copying(self, step: Step, result: StepResult) -> None:
        self._copies.learn(step.verbs, result.verbs_ms)

    def learn(
        self, step: Step, result: StepResult, *, size: int, attended: int, elapsed_ms: float
    ) -> float | None:
        """Learn that `size` tokens, with `attended` pairs, took so long: without verbs, but with drafting.

        Returns what was predicted for that; None: the step had to switch, and says only what that takes.
        """
        cost = self.of(step.adapter)
        predicted_ms = cost.predict_ms(size, attended) + result.drafting_ms
        if self._is_switch(step):
            self._adapters.learn_switch(elapsed_ms - predicted_ms)
            return None
        cost.refine(size, attended, elapsed_ms - result.drafting_ms)
        return predicted_ms

    def forget_adapter(self, key: str) -> None:
        self._adapters.forget(key)

    def _is_switch(self, step: Step) -> bool:
        return step.adapter != self._computed_with
