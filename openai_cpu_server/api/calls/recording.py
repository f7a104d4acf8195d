"""Listens to a call that goes on, so that its whole answer can be kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from types import TracebackType

from openai_cpu_server.contract.engine import Generation
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import ModelLoading, Place, TokenEvent
from openai_cpu_server.errors import ServerError

_MOST_FACTS = 131_072
"""A longer answer is not kept: some 20 MB would be held for as long as the call goes on. Each event is a
fact, and so is each log-probability that it tells."""


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
        self._num_facts = 0

    @property
    def arrived_s(self) -> float:
        return self._generation.arrived_s

    @property
    def figures(self) -> Figures:
        return self._generation.figures

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
        self._num_facts += _facts_of(event)
        if self._num_facts > _MOST_FACTS:
            self._events = None
        elif self._to_end == 0:
            self._keep(self._events)
            self._events = None


def _facts_of(event: TokenEvent) -> int:
    told = chain(event.logprobs, event.prompt_logprobs)
    return 1 + sum(1 + len(one.top) for one in told)
