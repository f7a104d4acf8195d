"""A running generation as the API sees it: an async stream of events that cancels itself when left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

import msgspec

from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.errors import GenerationFailed


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generation's time went, in milliseconds; the parts add up to the latency."""

    queue_ms: float
    """Until its first token was in a step."""
    prefill_ms: float
    """Until its first output token."""
    generation_ms: float
    latency_ms: float
    tokens_generated: int
    """Over all choices."""
    tokens_per_second: float
    """Of the time after the queue."""


class Clocking:
    """Notes when things first happened to a generation; times in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._submitted = clock()
        self._started: float | None = None
        self._first_token: float | None = None
        self._ended: float | None = None
        self.tokens = 0

    @property
    def has_started(self) -> bool:
        return self._started is not None

    def start(self) -> None:
        if self._started is None:
            self._started = self._clock()

    def first_token(self) -> None:
        if self._first_token is None:
            self._first_token = self._clock()

    def end(self) -> None:
        self._ended = self._clock()

    def timings(self) -> Timings:
        """As of the end, or as of now."""
        end = self._clock() if self._ended is None else self._ended
        started = end if self._started is None else self._started
        first = end if self._first_token is None else self._first_token
        busy_s = end - started
        return Timings(
            queue_ms=1000 * (started - self._submitted),
            prefill_ms=1000 * (first - started),
            generation_ms=1000 * (end - first),
            latency_ms=1000 * (end - self._submitted),
            tokens_generated=self.tokens,
            tokens_per_second=self.tokens / busy_s if busy_s > 0 else 0.0,
        )


class Generation:
    """The events of one API call's sequences, as they come. `async with` it: leaving cancels what still runs.

    Iterating raises `GenerationFailed` when a sequence ends with an error.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        cancel: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._unfinished = {request.id for request in requests}
        self._cancel = cancel
        self._queue: asyncio.Queue[TokenEvent | GenerationFailed] = asyncio.Queue()
        self._clocking = Clocking(clock)

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

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        while self._unfinished or not self._queue.empty():
            item = await self._queue.get()
            if isinstance(item, GenerationFailed):
                raise item
            yield item

    @property
    def timings(self) -> Timings:
        return self._clocking.timings()

    @property
    def has_started(self) -> bool:
        return self._clocking.has_started

    # -- called by the client --------------------------------------------------------------------------

    def start(self) -> None:
        self._clocking.start()

    def push(self, event: TokenEvent) -> None:
        self._clocking.start()
        if event.tokens or event.finish is not None:
            self._clocking.first_token()
        if event.finish is not None:
            self._clocking.tokens += event.finish.output_tokens
            self._leave(event.id)
            if event.finish.reason is FinishReason.ERROR:
                self._queue.put_nowait(GenerationFailed(event.finish.error or "the engine gave no reason"))
                return
        self._queue.put_nowait(event)

    def fail(self, request_id: str, message: str) -> None:
        self._leave(request_id)
        self._queue.put_nowait(GenerationFailed(message))

    def _leave(self, request_id: str) -> None:
        self._unfinished.discard(request_id)
        if not self._unfinished:
            self._clocking.end()
