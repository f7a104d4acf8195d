"""What a stream hears of its place in the queue, and when."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from openai_cpu_server.contract.messages import Place

INTERVAL_S = 1.0
"""Between two pieces of news at least."""


class Said(msgspec.Struct, frozen=True):
    """The last news."""

    at_s: float
    position: int


def is_due(now_s: float, said: Said | None, position: int) -> bool:
    if said is None:
        return True
    return position != said.position and now_s - said.at_s >= INTERVAL_S


class QueueNews:
    """Of one stream, from its beginning to its first chunk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: Said | None = None
        self._is_over = False

    def about(self, place: Place) -> Place | None:
        """What is to be said now, if anything is."""
        now_s = self._clock()
        if self._is_over or not is_due(now_s, self._said, place.position):
            return None
        self._said = Said(now_s, place.position)
        return place

    def end(self) -> None:
        """The first chunk is out."""
        self._is_over = True


def comment(place: Place) -> bytes:
    """`: queued position=3 first_token_ms=1200`, which readers of server-sent events never see."""
    return b": queued position=%d first_token_ms=%d\n\n" % (place.position, round(place.first_token_ms))
