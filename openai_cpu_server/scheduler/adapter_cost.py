"""What steps with an adapter cost beside those without: learned, and kept out of the base's own prices."""

from __future__ import annotations

from dataclasses import dataclass

from openai_cpu_server.scheduler.plan import StepCost

_NEW = 0.2
"""The weight of a new observation: some five count."""
_GUESSED_SLOWDOWN = 1.1
"""Measured at 1 B, 8 sequences, rank 16, all products (docs/models.md)."""
_GUESSED_SWITCH_MS = 5.0
"""The same."""
_MOST = 4.0
"""A step that takes more than so many times what was predicted was disturbed, and teaches so much only."""


@dataclass
class Slowdown:
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
        self._slowdowns: dict[str, Slowdown] = {}

    def of(self, key: str | None, base: StepCost) -> StepCost:
        """The cost of steps with this adapter. `base`: of steps without one; it may change at any time."""
        if key is None:
            return base
        slowdown = self._slowdowns.setdefault(key, Slowdown(base))
        slowdown.base = base
        return slowdown

    def learn_switch(self, ms: float) -> None:
        """A step took so much longer than predicted because of a switch."""
        seen = min(max(ms, 0.0), _MOST * max(self.switch_ms, 1.0))
        self.switch_ms += _NEW * (seen - self.switch_ms)

    def forget(self, key: str) -> None:
        self._slowdowns.pop(key, None)
