"""How busy other processes keep the machine: they spoil measurements."""

from __future__ import annotations

import psutil

NOISY = 0.15
"""If others take at least this share of the machine, measurements are not trusted."""


class Neighbours:
    """Measures other processes' share of all cores since the last question (or since the beginning)."""

    def __init__(self) -> None:
        self._before = _now()

    def share(self) -> float:
        """Their share, 0 to 1."""
        (total, busy, own), (total_before, busy_before, own_before) = (now := _now()), self._before
        self._before = now
        others = (busy - busy_before) - (own - own_before)
        return min(max(others / max(total - total_before, 1e-3), 0.0), 1.0)


def _now() -> tuple[float, float, float]:
    """Seconds of all cores so far: in total, not idle, and used by this process and its ended children."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    process = psutil.Process().cpu_times()
    own = process.user + process.system + process.children_user + process.children_system
    return total, total - idle, own
