"""Log of an event stream, which readers follow from any event. Background responses have one too."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence

import anyio

from openai_cpu_server.api.generation.renderer import Chunk, events


class EventLog:
    """Events numbered from 0. With a limit the oldest are dropped."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.events: deque[bytes] = deque()
        self.held_bytes = 0
        self.first = 0
        """Number of the first event that is still held."""
        self.has_ended = False
        self._most_bytes = most_bytes
        self._dropped_bytes = 0
        self._news = anyio.Event()

    @property
    def end_number(self) -> int:
        return self.first + len(self.events)

    @property
    def total_bytes(self) -> int:
        return self._dropped_bytes + self.held_bytes

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.append(events([chunk]))

    def append(self, event: bytes) -> None:
        self.events.append(event)
        self.held_bytes += len(event)
        while self._most_bytes is not None and self.held_bytes > self._most_bytes:
            num_bytes = len(self.events.popleft())
            self.held_bytes -= num_bytes
            self._dropped_bytes += num_bytes
            self.first += 1
        self._wake()

    def end(self) -> None:
        self.has_ended = True
        self._wake()

    async def ended(self) -> None:
        while not self.has_ended:
            await self._news.wait()

    async def read(self, number: int) -> AsyncIterator[bytes]:
        """Yield the events from this number to the last, or until one that was dropped."""
        while True:
            while self.first <= number < self.end_number:
                yield self.events[number - self.first]
                number += 1
            if self.has_ended or number < self.first:
                return
            await self._news.wait()

    async def read_bytes(self, start: int) -> AsyncIterator[bytes]:
        """Yield the rest from this byte, as llama-server's clients count."""
        number, at = self.first, self._dropped_bytes
        while number < self.end_number and at + len(self.events[number - self.first]) <= start:
            at += len(self.events[number - self.first])
            number += 1
        skipped = start - at
        async for event in self.read(number):
            yield event[skipped:]
            skipped = 0

    def has_byte(self, start: int) -> bool:
        return self._dropped_bytes <= start <= self.total_bytes

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
