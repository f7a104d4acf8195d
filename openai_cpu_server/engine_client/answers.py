"""Results that an API call waits for: events or vectors, their times, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, Literal, TypeVar, Union

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.figures import Figures, added_up
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.errors import ConstraintFailed, GenerationFailed, ReaderTooSlow, ServerError

Item = TypeVar("Item")
Arrived = tuple[Union[Item, QueuePlace, ModelLoading, ServerError], float]
"""Item from the engine, and the time of its arrival."""


class CallTimes:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._submitted_s = clock()
        self._times_s: dict[Literal["start", "first_token", "end"], float] = {}

    def note(self, event: Literal["start", "first_token", "end"]) -> None:
        """Record the time of an event, which counts once."""
        self._times_s.setdefault(event, self._clock())

    def figures(self, num_tokens: int, **counts: int) -> Figures:
        """`num_tokens`: tokens for the rate."""
        end_s = self._times_s.get("end", self._clock())
        start_s, first_s = self._times_s.get("start", end_s), self._times_s.get("first_token", end_s)
        return Figures(
            **counts,
            queue_ms=1000 * (start_s - self._submitted_s),
            prefill_ms=1000 * (first_s - start_s),
            generation_ms=1000 * (end_s - first_s),
            latency_ms=1000 * (end_s - self._submitted_s),
            tokens_per_second=num_tokens / (end_s - start_s) if end_s > start_s else 0.0,
        )


class EngineAnswer(Generic[Item]):
    def __init__(
        self, request_ids: Iterable[str], *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.arrived_s = clock()
        """Arrival of the last item that was taken, on `clock`."""
        self._unfinished = set(request_ids)
        self._cancel = cancel
        self._clock = clock
        self._times = CallTimes(clock)
        self._queue: asyncio.Queue[Arrived[Item]] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    async def __aexit__(self, *error: object) -> None:
        for request_id in self._unfinished:
            self._cancel(request_id)
        self._stop_timer()

    def fail_in(self, seconds: float, error: ServerError) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end, error)

    # -- called by `Replay` ------------------------------------------------------------------------------

    def start(self) -> None:
        self._times.note("start")

    def wait_at(self, place: QueuePlace | ModelLoading) -> None:
        self._put(place)

    def fail(self, request_id: str, error: ServerError) -> None:
        self._leave(request_id)
        self._put(error)

    # -- for the kinds of answers ------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return not self._unfinished and self._queue.empty()

    async def _take(self) -> Union[Item, QueuePlace, ModelLoading]:
        """Return the next item. Raises the error that the call failed with."""
        item, self.arrived_s = await self._queue.get()
        if isinstance(item, ServerError):
            raise item
        return item

    def _put(self, item: Union[Item, QueuePlace, ModelLoading, ServerError]) -> None:
        self._queue.put_nowait((item, self._clock()))

    def _end(self, error: ServerError) -> None:
        for request_id in list(self._unfinished):
            self._cancel(request_id)
            self.fail(request_id, error)

    def _leave(self, request_id: str) -> None:
        self._unfinished.discard(request_id)
        if not self._unfinished:
            self._times.note("end")
            self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


_GRACE_S = 1.0
"""Time for a reader to take a large amount, such as the scores of a long prompt."""
_EVENT_BYTES = 300
_LOGPROB_BYTES = 100


class EventBacklog:
    """Estimated bytes of the events that wait for their reader."""

    def __init__(self, clock: Callable[[], float], *, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._since_s = 0.0
        """Time since which the reader has been behind without a pause."""

    def add(self, event: TokenEvent) -> None:
        if not self._held_bytes:
            self._since_s = self._clock()
        self._held_bytes += _num_bytes(event)

    def take(self, event: TokenEvent) -> None:
        self._held_bytes -= _num_bytes(event)

    @property
    def is_too_much(self) -> bool:
        return self._held_bytes > self._max_bytes and self._clock() - self._since_s > _GRACE_S


def _num_bytes(event: TokenEvent) -> int:
    num_scores = sum(1 + len(entry.top) for entry in (*event.logprobs, *event.prompt_logprobs))
    return _EVENT_BYTES + len(event.text) + _LOGPROB_BYTES * num_scores


class GenerationAnswer(EngineAnswer[TokenEvent]):
    """Events of one API call's sequences as they arrive. Leaving its context cancels unfinished ones.

    Iterating raises `GenerationFailed` when a sequence ends with an error, `ConstraintFailed` if the error is
    its grammar's, and `RequestCancelled` if it was cancelled from elsewhere.
    """

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        cancel: Callable[[str], None],
        clock: Callable[[], float],
        max_held_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """`max_held_bytes`: unread events beyond which the call ends with `ReaderTooSlow`."""
        super().__init__((request.id for request in requests), cancel=cancel, clock=clock)
        self._finishes: list[Finish] = []
        self._backlog = EventBacklog(clock, max_bytes=max_held_bytes)

    async def __aenter__(self) -> GenerationAnswer:
        return self

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        async for item in self.progress():
            if isinstance(item, TokenEvent):
                yield item

    async def progress(self) -> AsyncIterator[TokenEvent | QueuePlace | ModelLoading]:
        while not self._is_over:
            item = await self._take()
            if isinstance(item, TokenEvent):
                self._backlog.take(item)
            yield item

    @property
    def figures(self) -> Figures:
        """Figures so far. Counts are those of finished sequences."""
        counts = added_up(self._finishes)
        return self._times.figures(counts["output_tokens"], **counts)

    # -- called by `Replay` ------------------------------------------------------------------------------

    def push(self, event: TokenEvent | Embedded) -> None:
        assert isinstance(event, TokenEvent)
        self._times.note("start")
        if event.tokens or event.finish is not None:
            self._times.note("first_token")
        if event.finish is not None:
            self._finishes.append(event.finish)
            self._leave(event.id)
            if event.finish.reason is FinishReason.ERROR:
                kind = ConstraintFailed if event.finish.is_own_fault else GenerationFailed
                self._put(kind(event.finish.error or "the engine gave no reason"))
                return
        self._backlog.add(event)
        self._put(event)
        if self._backlog.is_too_much:
            self._end(ReaderTooSlow())
            self._queue = asyncio.Queue()
            self._put(ReaderTooSlow())


class EmbeddingAnswer(EngineAnswer[Embedded]):
    """Vectors of one API call. Leaving its context cancels the call if it is unfinished."""

    def __init__(
        self, request: EmbedRequest, *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__([request.id], cancel=cancel, clock=clock)
        self._request = request
        self._num_embedded = 0

    async def __aenter__(self) -> EmbeddingAnswer:
        return self

    async def vectors(self) -> bytes:
        """Return all rows in the order of the inputs; may be called once. Raises `GenerationFailed`, and
        other errors that ended the call, such as `RequestCancelled`."""
        rows = []
        while not self._is_over:
            item = await self._take()
            if isinstance(item, Embedded):
                rows.append(item.vectors)
        return b"".join(rows)

    @property
    def figures(self) -> Figures:
        return self._times.figures(sum(map(len, self._request.inputs[: self._num_embedded])))

    # -- called by `Replay` ------------------------------------------------------------------------------

    def push(self, event: TokenEvent | Embedded) -> None:
        assert isinstance(event, Embedded)
        self._times.note("start")
        if event.error is not None:
            self.fail(event.id, GenerationFailed(event.error))
            return
        self._num_embedded += event.count
        if self._num_embedded == len(self._request.inputs):
            self._leave(event.id)
        self._put(event)
