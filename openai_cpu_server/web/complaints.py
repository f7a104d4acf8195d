"""What clients send that is neither HTTP nor WebSocket costs the log a line for many, and never a stack."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

_INTERVAL_S = 10.0


class Complaints:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock()
        self._num_unsaid = 0

    def note(self, client: tuple[str, int] | None, what: str) -> None:
        """A line at once, then none for a while; the next one says how many there were meanwhile."""
        self._num_unsaid += 1
        now_s = self._clock()
        if now_s < self._next_s:
            return
        said, self._num_unsaid, self._next_s = self._num_unsaid, 0, now_s + _INTERVAL_S
        logger.warning("malformed requests: %d; the last, from %s: %s", said, client and client[0], what)
