"""How busy the machine is with other things: they spoil measurements."""

from __future__ import annotations

import psutil

NOISY = 0.15
"""Share of the machine taken by others from which on measurements are not to be trusted."""


class Neighbours:
    """Other processes' share of all cores, since it was last asked for (or since the beginning)."""

    def __init__(self) -> None:
        self._before = _now()

    def share(self) -> float:
        """0 to 1."""
        (total, busy, own), (total_before, busy_before, own_before) = (now := _now()), self._before
        self._before = now
        others = (busy - busy_before) - (own - own_before)
        return min(max(others / max(total - total_before, 1e-3), 0.0), 1.0)


def _now() -> tuple[float, float, float]:
    """Seconds of all cores so far: all there were, those that were not idle, those of this process
    and of its children that have ended."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    process = psutil.Process().cpu_times()
    own = process.user + process.system + process.children_user + process.children_system
    return total, total - idle, own
