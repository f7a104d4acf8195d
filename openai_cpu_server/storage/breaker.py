from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

logger = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE_S = 5.0
"""Pause for calls of clients."""


class NotAnswering(Exception): ...


@dataclass(kw_only=True)
class CircuitBreaker:
    fails: str
    """Line for the log, with a %s for the reason."""
    back: str
    failure: Callable[[Exception], str | None]
    """Return the reason, or None if the service is not down."""
    answer_s: float | None = None
    pause_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _asks_again_s: float = field(default=float("-inf"), init=False)
    _is_failing: bool = field(default=False, init=False)

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call unless paused. Raises NotAnswering."""
        if self.clock() < self._asks_again_s:
            raise NotAnswering
        return await self.insist(work, self.answer_s)

    async def attempt(self, work: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await self.ask(work)
        except NotAnswering:
            return None

    async def insist(self, work: Callable[[], Awaitable[T]], answer_s: float | None) -> T:
        """Call even during a pause. Raises NotAnswering."""
        cause: Exception | None = None
        try:
            with anyio.move_on_after(answer_s):
                answer = await work()
                self._asks_again_s = float("-inf")
                if self._is_failing:
                    logger.info(self.back)
                self._is_failing = False
                return answer
            reason: str | None = "no answer in time"
        except Exception as error:
            reason, cause = self.failure(error), error
            if reason is None:
                raise
        self._asks_again_s = self.clock() + self.pause_s
        if not self._is_failing:
            logger.error(self.fails, reason)
        self._is_failing = True
        raise NotAnswering from cause
