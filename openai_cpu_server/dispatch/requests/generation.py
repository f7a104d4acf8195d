"""A running generation as the API sees it: an async stream of events that cancels itself when left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from openai_cpu_server.contract.figures import Figures, added_up
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, Place, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.requests.answer import Answer
from openai_cpu_server.dispatch.requests.awaiting import TakesTokens
from openai_cpu_server.dispatch.requests.backlog import Backlog
from openai_cpu_server.errors import ConstraintFailed, GenerationFailed, ReaderTooSlow, ServerError


class Generation(Answer[TokenEvent], TakesTokens):
    """The events of one API call's sequences, as they come. `async with` it: leaving cancels what still runs.

    Iterating raises `GenerationFailed` when a sequence ends with an error, `ConstraintFailed` where that is
    its own grammar's, `RequestCancelled` when somebody else ended it.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        cancel: Callable[[str], None],
        clock: Callable[[], float],
        max_held_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """It ends with `ReaderTooSlow` when more than `max_held_bytes` of events wait for their reader."""
        super().__init__((request.id for request in requests), cancel=cancel, clock=clock)
        self._finishes: list[Finish] = []
        self._backlog = Backlog(clock, max_bytes=max_held_bytes)

    async def __aenter__(self) -> Generation:
        return self

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        async for item in self.progress():
            if isinstance(item, TokenEvent):
                yield item

    async def progress(self) -> AsyncIterator[TokenEvent | Place | ModelLoading]:
        """Its events and, while it waits as a whole, now and then its place in the queue, or how far the
        model that it waits for is loaded."""
        while not self._is_over:
            item = await self._take()
            if isinstance(item, TokenEvent):
                self._backlog.take(item)
            yield item

    @property
    def figures(self) -> Figures:
        """Up to the end, or up to now while it has not ended; counts are of the sequences that have ended."""
        times, counts = self._clocking, added_up(self._finishes)
        end, started, first = times.ended, times.started, times.first
        tokens, busy_s = counts["output_tokens"], end - started
        return Figures(
            **counts,
            queue_ms=1000 * (started - times.submitted),
            prefill_ms=1000 * (first - started),
            generation_ms=1000 * (end - first),
            latency_ms=1000 * (end - times.submitted),
            tokens_per_second=tokens / busy_s if busy_s > 0 else 0.0,
        )

    # -- called by `Replay` ----------------------------------------------------------------------------

    def push(self, event: TokenEvent) -> None:
        self._clocking.start()
        if event.tokens or event.finish is not None:
            self._clocking.first_token()
        if event.finish is not None:
            self._finishes.append(event.finish)
            self._leave(event.id)
            if event.finish.reason is FinishReason.ERROR:
                self._put(_failure(event.finish))
                return
        self._backlog.add(event)
        self._put(event)
        if self._backlog.is_too_much:
            self._drop()

    def _drop(self) -> None:
        """Keep nothing more for a reader so slow."""
        self._end(ReaderTooSlow())
        self._queue = asyncio.Queue()
        self._put(ReaderTooSlow())


def _failure(finish: Finish) -> ServerError:
    """What a sequence has ended with."""
    kind = ConstraintFailed if finish.is_own_fault else GenerationFailed
    return kind(finish.error or "the engine gave no reason")
