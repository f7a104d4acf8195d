"""Asks something that may be away, and leaves it alone for a while when it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE_S = 5.0
"""For what clients wait for: in so many seconds one of them waits in vain."""


class NotAnswering(Exception):
    """It has failed, or has done so a moment ago and was not asked."""


class CircuitBreaker:
    """One line in the log tells that it fails, and one that it is back. All methods belong to one event
    loop's thread.

    `fails`, `back`: these lines; the first has a %s for the reason.
    `failure`: the reason that an exception gives; None: it does not mean that it is away.
    `answer_s`: what it gets to answer; None: as long as it takes.
    `pause_s`: so long it is not asked after a failure.
    """

    def __init__(
        self,
        *,
        fails: str,
        back: str,
        failure: Callable[[Exception], str | None],
        answer_s: float | None = None,
        pause_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fails = fails
        self._back = back
        self._failure = failure
        self._answer_s = answer_s
        self._pause_s = pause_s
        self._clock = clock
        self._asks_again_s = float("-inf")
        self._is_failing = False

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Raises NotAnswering."""
        if self._clock() < self._asks_again_s:
            raise NotAnswering
        return await self.insist(work, self._answer_s)

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """None: it does not answer."""
        try:
            return await self.ask(work)
        except NotAnswering:
            return None

    async def insist(self, work: Callable[[], Awaitable[T]], answer_s: float | None) -> T:
        """Asks even what has failed a moment ago. Raises NotAnswering."""
        try:
            with anyio.move_on_after(answer_s):
                answer = await work()
                self._worked()
                return answer
            raise _Late
        except Exception as error:
            why = "no answer in time" if isinstance(error, _Late) else self._failure(error)
            if why is None:
                raise
            self._failed(why)
            raise NotAnswering from error

    def _failed(self, why: str) -> None:
        self._asks_again_s = self._clock() + self._pause_s
        if not self._is_failing:
            logger.error(self._fails, why)
        self._is_failing = True

    def _worked(self) -> None:
        self._asks_again_s = float("-inf")
        if self._is_failing:
            logger.info(self._back)
        self._is_failing = False


class _Late(Exception):
    """It has not answered in time."""
