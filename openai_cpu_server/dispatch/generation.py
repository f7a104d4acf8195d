"""A running generation as the API sees it: an async stream of events that cancels itself when left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from openai_cpu_server.contract.engine import Timings
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, Place, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.backlog import Backlog
from openai_cpu_server.errors import GenerationFailed, ReaderTooSlow, ServerError

_Arrived = tuple[TokenEvent | Place | ModelLoading | ServerError, float]
"""What the engine told, and when it came in."""


class Clocking:
    """Notes when things first happened to a generation; times in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._submitted = clock()
        self._started: float | None = None
        self._first_token: float | None = None
        self._ended: float | None = None

    def start(self) -> None:
        if self._started is None:
            self._started = self._clock()

    def first_token(self) -> None:
        if self._first_token is None:
            self._first_token = self._clock()

    def end(self) -> None:
        self._ended = self._clock()

    def timings(self, finishes: Sequence[Finish]) -> Timings:
        """Times up to the end, or up to now while it has not ended."""
        end = self._clock() if self._ended is None else self._ended
        started = end if self._started is None else self._started
        first = end if self._first_token is None else self._first_token
        tokens, busy_s = sum(finish.output_tokens for finish in finishes), end - started
        return Timings(
            queue_ms=1000 * (started - self._submitted),
            prefill_ms=1000 * (first - started),
            generation_ms=1000 * (end - first),
            latency_ms=1000 * (end - self._submitted),
            tokens_generated=tokens,
            tokens_per_second=tokens / busy_s if busy_s > 0 else 0.0,
            preemptions=sum(finish.preemptions for finish in finishes),
            interruptions=sum(finish.interruptions for finish in finishes),
            forced_tokens=sum(finish.forced_tokens for finish in finishes),
            padded_tokens=sum(finish.padded_tokens for finish in finishes),
            draft_n=sum(finish.drafted_tokens for finish in finishes),
            draft_n_accepted=sum(finish.accepted_tokens for finish in finishes),
        )


class Generation:
    """The events of one API call's sequences, as they come. `async with` it: leaving cancels what still runs.

    Iterating raises `GenerationFailed` when a sequence ends with an error, `RequestCancelled` when somebody
    else ended it.
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
        self._unfinished = {request.id for request in requests}
        self._cancel = cancel
        self.arrived_s = clock()
        """When the event that was taken last came in, on `clock`."""
        self._queue: asyncio.Queue[_Arrived] = asyncio.Queue()
        self._clock = clock
        self._finishes: list[Finish] = []
        self._clocking = Clocking(clock)
        self._backlog = Backlog(clock, max_bytes=max_held_bytes)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for request_id in self._unfinished:
            self._cancel(request_id)
        self._stop_timer()

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        async for item in self.progress():
            if isinstance(item, TokenEvent):
                yield item

    async def progress(self) -> AsyncIterator[TokenEvent | Place | ModelLoading]:
        """Its events and, while it waits as a whole, now and then its place in the queue, or how far the
        model that it waits for is loaded."""
        while self._unfinished or not self._queue.empty():
            item, self.arrived_s = await self._queue.get()
            if isinstance(item, ServerError):
                raise item
            if isinstance(item, TokenEvent):
                self._backlog.take(item)
            yield item

    @property
    def timings(self) -> Timings:
        return self._clocking.timings(self._finishes)

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """End it with this error unless it has ended by then."""
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end, error)

    def _end(self, error: ServerError) -> None:
        for request_id in list(self._unfinished):
            self._cancel(request_id)
            self.fail(request_id, error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # -- called by `Replay` ----------------------------------------------------------------------------

    def start(self) -> None:
        self._clocking.start()

    def wait_at(self, place: Place) -> None:
        self._put(place)

    def wait_for_model(self, loading: ModelLoading) -> None:
        self._put(loading)

    def push(self, event: TokenEvent) -> None:
        self._clocking.start()
        if event.tokens or event.finish is not None:
            self._clocking.first_token()
        if event.finish is not None:
            self._finishes.append(event.finish)
            self._leave(event.id)
            if event.finish.reason is FinishReason.ERROR:
                self._put(GenerationFailed(event.finish.error or "the engine gave no reason"))
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

    def fail(self, request_id: str, error: ServerError) -> None:
        self._leave(request_id)
        self._put(error)

    def _put(self, item: TokenEvent | Place | ModelLoading | ServerError) -> None:
        self._queue.put_nowait((item, self._clock()))

    def _leave(self, request_id: str) -> None:
        self._unfinished.discard(request_id)
        if not self._unfinished:
            self._clocking.end()
            self._stop_timer()
