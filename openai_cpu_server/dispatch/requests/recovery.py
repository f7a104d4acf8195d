"""How long it takes after a death until all that ran are served again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger(__name__)


class Recovery:
    """Begins with the first death, and ends when all whom deaths concerned are back; then it is logged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._missing: set[str] = set()
        self._since_s = 0.0
        self._num_deaths = 0
        self._num_suspects = 0

    def died(self, concerned: Iterable[str], *, num_suspects: int) -> None:
        """`concerned`: the requests that ran, and the suspects among them."""
        if not self._missing:
            self._since_s, self._num_deaths, self._num_suspects = self._clock(), 0, 0
        self._missing.update(concerned)
        self._num_deaths += 1
        self._num_suspects = max(self._num_suspects, num_suspects)

    def is_back(self, request_id: str) -> None:
        """The request has gained a token, or has left for whatever reason."""
        if request_id not in self._missing:
            return
        self._missing.remove(request_id)
        if not self._missing:
            logger.info(
                "recovered from the engine's death in %.2f s (deaths: %d, suspects: %d)",
                self._clock() - self._since_s,
                self._num_deaths,
                self._num_suspects,
            )
