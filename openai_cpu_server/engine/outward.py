"""What the engine tells those who choose between several engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from openai_cpu_server.contract.replica import Forecast, PrefixNews
from openai_cpu_server.scheduler.prefix_cache import Journal
from openai_cpu_server.scheduler.scheduler import Scheduler

_TELL_S = 0.1
"""A forecast takes up to a millisecond; told ten times a second that is 1 % of a core at most."""


class OutwardNews(NamedTuple):
    forecast: Forecast | None = None
    prefixes: PrefixNews | None = None


class Outward:
    """Tells the forecast ten times a second at most, and always when there is nothing more to compute."""

    def __init__(self, scheduler: Scheduler, journal: Journal, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._clock = clock
        self._told_at = float("-inf")

    def news(self) -> OutwardNews:
        """What is to be told with the present step."""
        now_s = self._clock()
        if self._scheduler.has_work and now_s - self._told_at < _TELL_S:
            return OutwardNews()
        self._told_at = now_s
        return OutwardNews(self._scheduler.expectations.forecast(), self._journal.take())
