"""Counts how often the engine has died lately, and decides when to start another or to give up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_FIRST_BACKOFF_S = 0.1
_MINUTE_S = 60.0


class CrashRecord:
    """Deaths that say something is wrong here; `max_a_minute` of them are too many.

    Those by which the search for a culprit comes closer to it do not count: there are only few of them. The
    first of a search does, until the culprit is found: that explains it, and the record begins anew.

    So are `max_a_minute` starts in a row that fail, however long they take: a large model loads for minutes.
    """

    def __init__(self, *, max_a_minute: int, clock: Callable[[], float]) -> None:
        self.max_a_minute = max_a_minute
        self._clock = clock
        self._times: deque[float] = deque(maxlen=max_a_minute)
        self._failed_starts = 0
        self._in_a_row = 0
        """The deaths that count since the last one that does not."""

    def note(self) -> None:
        """The engine has died."""
        self._in_a_row += 1
        self._times.append(self._clock())

    def excuse(self) -> None:
        """The engine has died, but nothing is wrong here: the next start need not wait."""
        self._in_a_row = 0

    def start_failed(self) -> None:
        """It died by itself before it was ready. (That is a death to note, too.)"""
        self._failed_starts += 1

    def started(self) -> None:
        self._failed_starts = 0

    @property
    def why_too_many(self) -> str | None:
        """None: they are not."""
        if self._recent() >= self.max_a_minute:
            return f"{self.max_a_minute} crashes within a minute"
        if self._failed_starts >= self.max_a_minute:
            return f"{self.max_a_minute} starts in a row that failed"
        return None

    @property
    def backoff_s(self) -> float:
        """0.1 s; doubled with each failed start in a row, and with each death in a row that counts and came
        within the last minute, up to 6.4 s."""
        doublings = max(min(self._recent(), self._in_a_row), self._failed_starts) - 1
        return _FIRST_BACKOFF_S * 2.0 ** min(6, max(0, doublings))

    def _recent(self) -> int:
        return sum(self._clock() - t < _MINUTE_S for t in self._times)
