"""What a stream hears while it waits: `: queued position=3 first_token_ms=1200`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from openai_cpu_server.contract.messages import Place

INTERVAL_S = 1.0
"""Between two comments at least."""


class Said(msgspec.Struct, frozen=True):
    """The last comment."""

    at_s: float
    position: int


def is_due(now_s: float, said: Said | None, position: int) -> bool:
    if said is None:
        return True
    return position != said.position and now_s - said.at_s >= INTERVAL_S


def comment(place: Place) -> bytes:
    """A comment of server-sent events, which readers of events never see."""
    return b": queued position=%d first_token_ms=%d\n\n" % (place.position, round(place.first_token_ms))


class QueueComments:
    """Of one stream, from its beginning to its first chunk."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: Said | None = None
        self._is_over = False

    def about(self, place: Place) -> bytes:
        """What is to be said now, be it nothing."""
        now_s = self._clock()
        if self._is_over or not is_due(now_s, self._said, place.position):
            return b""
        self._said = Said(now_s, place.position)
        return comment(place)

    def end(self) -> None:
        """The first chunk is out."""
        self._is_over = True
