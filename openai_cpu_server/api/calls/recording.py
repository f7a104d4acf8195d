"""Listens to a call that goes on, so that its whole answer can be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from openai_cpu_server.contract.engine import Generation, Timings
from openai_cpu_server.contract.messages import ModelLoading, Place, TokenEvent
from openai_cpu_server.errors import ServerError

_MOST_EVENTS = 65_536
"""A longer answer is not kept: the memory would be held for as long as the call goes on."""


class Recording:
    """A `Generation` as it is. `keep` is called with all events if all of its `num_requests` requests end."""

    def __init__(
        self, generation: Generation, num_requests: int, keep: Callable[[Sequence[TokenEvent]], None]
    ) -> None:
        self._generation = generation
        self._to_end = num_requests
        self._keep = keep
        self._events: list[TokenEvent] | None = []
        """None: it is too long."""

    @property
    def arrived_s(self) -> float:
        return self._generation.arrived_s

    @property
    def timings(self) -> Timings:
        return self._generation.timings

    async def __aenter__(self) -> Recording:
        await self._generation.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._generation.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        async for event in self._generation:
            self._note(event)
            yield event

    async def progress(self) -> AsyncIterator[TokenEvent | Place | ModelLoading]:
        async for item in self._generation.progress():
            if isinstance(item, TokenEvent):
                self._note(item)
            yield item

    def fail_in(self, seconds: float, error: ServerError) -> None:
        self._generation.fail_in(seconds, error)

    def _note(self, event: TokenEvent) -> None:
        if self._events is None:
            return
        self._events.append(event)
        if event.finish is not None:
            self._to_end -= 1
        if len(self._events) > _MOST_EVENTS:
            self._events = None
        elif self._to_end == 0:
            self._keep(self._events)
            self._events = None
