"""The events of a background response, for all who listen, whenever they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import anyio

from openai_cpu_server.api.calls.event_stream import events
from openai_cpu_server.api.render.renderer import Chunk


class EventLog:
    """Event number n stands at index n."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._news = anyio.Event()
        self._has_ended = False

    @property
    def events(self) -> Sequence[bytes]:
        return self._events

    def add(self, chunks: Sequence[Chunk]) -> None:
        self._events += [events([chunk]) for chunk in chunks]
        self._wake()

    def end(self) -> None:
        self._has_ended = True
        self._wake()

    async def ended(self) -> None:
        while not self._has_ended:
            await self._news.wait()

    async def read(self, first: int) -> AsyncIterator[bytes]:
        """All events from this number on, until the last one."""
        while True:
            while first < len(self._events):
                yield self._events[first]
                first += 1
            if self._has_ended:
                return
            await self._news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
