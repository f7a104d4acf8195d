"""A store that fails or is slow holds nobody up: their answers are computed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from openai_cpu_server.answers.store import StoreFailed

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 1.0
"""The store must answer in this time."""
CLEAR_S = 60.0
"""Emptying a large store takes longer, and somebody waits for just that."""
_PAUSE_S = 5.0
"""After a failure it is not asked again for so long."""


class Patience:
    """`answer_s`: what the store gets to answer."""

    def __init__(self, *, answer_s: float = ANSWER_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._answer_s = answer_s
        self._clock = clock
        self._asks_again_s = float("-inf")
        self._is_failing = False

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """None: it has failed, or does so these days. One line in the log tells when that begins and ends."""
        if self._clock() < self._asks_again_s:
            return None
        try:
            return await self.insist(work, self._answer_s)
        except StoreFailed:
            return None

    async def insist(self, work: Callable[[], Awaitable[T]], answer_s: float) -> T:
        """Asks even a store that fails these days. Raises StoreFailed."""
        try:
            answer = await asyncio.wait_for(work(), answer_s)
        except StoreFailed as error:
            self._fails(str(error))
            raise
        except asyncio.TimeoutError:
            self._fails("no answer in time")
            raise StoreFailed("no answer in time") from None
        self._works()
        return answer

    def _fails(self, why: str) -> None:
        self._asks_again_s = self._clock() + _PAUSE_S
        if not self._is_failing:
            logger.error("the cache of answers fails (%s): all is computed until it is back", why)
        self._is_failing = True

    def _works(self) -> None:
        self._asks_again_s = float("-inf")
        if self._is_failing:
            logger.info("the cache of answers is back")
        self._is_failing = False
