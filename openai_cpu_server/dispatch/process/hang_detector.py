"""Decides when an engine process that says nothing is hung.

The limits are generous on purpose: a busy machine makes a step ten or a hundred times slower, and a healthy
engine that is killed costs everybody a restart. A hang is rare, and waiting a minute for it is bearable.
"""

from __future__ import annotations

import msgspec

TICK_S = 0.5
"""How often to ask."""
_FACTOR = 300.0
"""How much slower than expected a step may be."""


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    step_s: float | None = 60.0
    """Longest silence while something is computed; or 300 times what the step should take, if that is longer.
    None: there is no limit."""
    load_s: float | None = 1800.0
    """Longest silence while the model is loaded and its steps are measured. None: there is no limit."""


class HangDetector:
    """Times the silence of one engine process. It is told of all news, and asked every `TICK_S`."""

    def __init__(self, limits: HangLimits, *, now_s: float) -> None:
        self.silence_s = 0.0
        """Counts while something was owed, and only time in which this process itself ran."""
        self.handling_s: float | None = None
        """How long one request has been handled outside of steps, whatever else is heard; None: none is."""
        self._limits = limits
        self._asked_s = now_s
        self._expected_s = 0.0

    def news(self) -> None:
        self.silence_s = 0.0

    def step_begins(self, expected_ms: float) -> None:
        self._expected_s = expected_ms / 1000

    def handling(self, request_id: str | None) -> None:
        """Another request is being handled outside of steps, or none any more."""
        self.handling_s = None if request_id is None else 0.0

    @property
    def stuck_s(self) -> float:
        """The longer of both."""
        return max(self.silence_s, self.handling_s or 0.0)

    def is_hung(self, now_s: float, *, is_loading: bool, owes: bool, is_waiting: bool = False) -> bool:
        """`owes`: it has something to do. `is_waiting`: but it may not, for another engine computes.

        A gap between two questions counts as one short wait: this process was stopped or had no CPU then, and
        neither had the engine.
        """
        waited = min(now_s - self._asked_s, 2 * TICK_S)
        self._asked_s = now_s
        is_due = (is_loading or owes) and not is_waiting
        self.silence_s = self.silence_s + waited if is_due else 0.0
        if self.handling_s is not None:
            self.handling_s += waited
        limit = self._load_limit if is_loading else self._step_limit
        return limit is not None and self.stuck_s > limit

    @property
    def _load_limit(self) -> float | None:
        return self._limits.load_s

    @property
    def _step_limit(self) -> float | None:
        if self._limits.step_s is None:
            return None
        return max(self._limits.step_s, _FACTOR * self._expected_s)
