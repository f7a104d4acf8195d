"""A sliding window counter, as `limits` keeps it: the count of the window that runs, and of the one before.

What was used is the running window's count and as much of the one before as the sliding window still covers.
"""

from __future__ import annotations

import math

import msgspec


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds from now."""

    period_s: float
    previous: int = 0
    previous_left_s: float = 0.0
    """The time until nothing of the window before is covered."""
    current: int = 0
    current_left_s: float = 0.0
    """The time until nothing of the running window is covered: what is left of it, and one period more."""

    def remaining(self, limit: int) -> int:
        return max(0, limit - math.floor(self._used))

    @property
    def reset_s(self) -> float:
        """The time until nothing counts as used."""
        return self.current_left_s if self.current else self.previous_left_s if self.previous else 0.0

    def wait_s(self, cost: int, limit: int) -> float | None:
        """The time until `cost` more fits, if nobody else comes; None: it never will."""
        room = limit - cost + 1  # what is used counts in whole numbers, rounded down
        if room <= 0:
            return None
        if self._used < room:
            return 0.0
        if self.current < room:
            return self.previous_left_s - (room - self.current) * self.period_s / self.previous
        return self.current_left_s - self.period_s * room / self.current

    @property
    def _used(self) -> float:
        return self.previous * self.previous_left_s / self.period_s + self.current
