"""How often the engine has died lately: how long to wait before the next start, and when to give up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_FIRST_BACKOFF_S = 0.1
_MINUTE_S = 60.0


class CrashRecord:
    """Deaths that say something is wrong here; `max_a_minute` of them are too many."""

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.max_a_minute = max_a_minute
        self._clock = clock
        self._times: deque[float] = deque(maxlen=max_a_minute)

    def note(self) -> None:
        self._times.append(self._clock())

    @property
    def is_too_many(self) -> bool:
        return self._recent() >= self.max_a_minute

    @property
    def backoff_s(self) -> float:
        """0.1 s, doubled with each within the last minute; 6.4 s at most."""
        return _FIRST_BACKOFF_S * 2.0 ** min(6, max(0, self._recent() - 1))

    def _recent(self) -> int:
        return sum(self._clock() - t < _MINUTE_S for t in self._times)
