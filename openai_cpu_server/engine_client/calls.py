"""Acceptance of API calls within the queue's limits, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Generic, Literal, Protocol, TypeVar, Union

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.figures import Figures, added_up
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.contract.model_info import AdapterState, AdapterStatus, ModelInfo, ModelKind
from openai_cpu_server.contract.request import Constraint, EngineRequest, GenerationRequest
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests

T = TypeVar("T")
Arrived = tuple[Union[T, QueuePlace, ModelLoading, errors.ServerError], float]


class CallTimes:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._submitted_s = clock()
        self._times_s: dict[Literal["start", "first_token", "end"], float] = {}

    def note(self, event: Literal["start", "first_token", "end"]) -> None:
        self._times_s.setdefault(event, self._clock())

    def figures(self, num_tokens: int, **counts: int) -> Figures:
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


class EngineAnswer(Generic[T]):
    def __init__(
        self, request_ids: Iterable[str], *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self.arrived_s = clock()
        self._unfinished = set(request_ids)
        self._cancel = cancel
        self._clock = clock
        self._times = CallTimes(clock)
        self._queue: asyncio.Queue[Arrived[T]] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None

    async def __aexit__(self, *error: object) -> None:
        for request_id in self._unfinished:
            self._cancel(request_id)
        self._stop_timer()

    def fail_in(self, seconds: float, error: errors.ServerError) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._end, error)

    # -- called by `Replay` ------------------------------------------------------------------------------

    def start(self) -> None:
        self._times.note("start")

    def wait_at(self, place: QueuePlace | ModelLoading) -> None:
        self._put(place)

    def fail(self, request_id: str, error: errors.ServerError) -> None:
        self._leave(request_id)
        self._put(error)

    # -- for the kinds of answers ------------------------------------------------------------------------

    @property
    def _is_over(self) -> bool:
        return not self._unfinished and self._queue.empty()

    async def _take(self) -> Union[T, QueuePlace, ModelLoading]:
        item, self.arrived_s = await self._queue.get()
        if isinstance(item, errors.ServerError):
            raise item
        return item

    def _put(self, item: Union[T, QueuePlace, ModelLoading, errors.ServerError]) -> None:
        self._queue.put_nowait((item, self._clock()))

    def _end(self, error: errors.ServerError) -> None:
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


def _num_bytes(event: TokenEvent) -> int:
    num_scores = sum(1 + len(entry.top) for entry in (*event.logprobs, *event.prompt_logprobs))
    return _EVENT_BYTES + len(event.text) + _LOGPROB_BYTES * num_scores


class GenerationAnswer(EngineAnswer[TokenEvent]):
    """Events of one API call. Leaving its context cancels unfinished sequences; iterating raises
    `GenerationFailed`, `ConstraintFailed` for a bad grammar, or `RequestCancelled`."""

    def __init__(
        self,
        requests: Sequence[GenerationRequest],
        *,
        cancel: Callable[[str], None],
        clock: Callable[[], float],
        max_held_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        super().__init__((request.id for request in requests), cancel=cancel, clock=clock)
        self._finishes: list[Finish] = []
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self._behind_since_s = 0.0

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
                self._held_bytes -= _num_bytes(item)
            yield item

    @property
    def figures(self) -> Figures:
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
                kind = errors.ConstraintFailed if event.finish.is_own_fault else errors.GenerationFailed
                self._put(kind(event.finish.error or "the engine gave no reason"))
                return
        if not self._held_bytes:
            self._behind_since_s = self._clock()
        self._held_bytes += _num_bytes(event)
        self._put(event)
        is_too_much = self._held_bytes > self._max_held_bytes
        if is_too_much and self._clock() - self._behind_since_s > _GRACE_S:
            self._end(errors.ReaderTooSlow())
            self._queue = asyncio.Queue()
            self._put(errors.ReaderTooSlow())


class EmbeddingAnswer(EngineAnswer[Embedded]):
    def __init__(
        self, request: EmbedRequest, *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__([request.id], cancel=cancel, clock=clock)
        self._request = request
        self._num_embedded = 0

    async def __aenter__(self) -> EmbeddingAnswer:
        return self

    async def vectors(self) -> bytes:
        """Return all rows in order; may be called once. Raises the call's error."""
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
            self.fail(event.id, errors.GenerationFailed(event.error))
            return
        self._num_embedded += event.count
        if self._num_embedded == len(self._request.inputs):
            self._leave(event.id)
        self._put(event)


UNKNOWN_S = 1.0


def wait_until_left_s(expected_s: Sequence[float], num: int) -> float:
    """Seconds until `num` requests have left, at the rate of the first."""
    if not expected_s:
        return UNKNOWN_S
    if num <= len(expected_s):
        return expected_s[num - 1]
    return expected_s[-1] * num / len(expected_s)


class RequestProxy(Protocol):
    @property
    def live(self) -> AcceptedRequests: ...

    def accept(self, call: Sequence[AcceptedRequest]) -> None: ...

    def cancel(self, *request_ids: str) -> None:
        """Stop computing, without notifying the readers."""

    def stop(self, live: AcceptedRequest) -> None:
        """Finish the request with its output so far. The engine notifies the reader."""

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """End the reasoning, with `ending` as the request's new constraint."""


@dataclass(eq=False)
class RequestAdmission:
    proxy: RequestProxy
    culprits: CulpritLedger
    adapters: Callable[[], Iterable[AdapterStatus]]
    _: KW_ONLY
    max_queue: int
    """Waiting requests of each priority. Accounts with less than an equal share may exceed it, because one
    account must not shut the others out."""
    max_held_bytes: int
    """Unread events of each call."""
    clock: Callable[[], float]

    def generate(self, info: ModelInfo, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        """Accept an API call. Raises CulpritsLimited, QueueFull, AdapterNotFound, InvalidRequest."""
        if info.kind is not ModelKind.GENERATES:
            raise _wrong_kind(info, "generate text")
        self._check(requests[0], len(requests))
        requests = self._with_adapter(requests)
        generation = GenerationAnswer(
            requests, cancel=self.proxy.cancel, clock=self.clock, max_held_bytes=self.max_held_bytes
        )
        self.proxy.accept([AcceptedRequest(request, generation, self.clock()) for request in requests])
        return generation

    def embed(self, info: ModelInfo, request: EmbedRequest) -> EmbeddingAnswer:
        """Accept an API call. Raises CulpritsLimited, QueueFull, InvalidRequest."""
        if info.kind is ModelKind.GENERATES:
            raise _wrong_kind(info, "embed")
        limit = info.max_input_tokens
        for number, tokens in enumerate(request.inputs):
            if not 1 <= len(tokens) <= limit:
                message = f"Input {number} has {len(tokens)} tokens; this model takes 1 to {limit}."
                raise errors.InvalidRequest(message, param="input", code="context_length_exceeded")
        self._check(request, 1)
        embedding = EmbeddingAnswer(request, cancel=self.proxy.cancel, clock=self.clock)
        self.proxy.accept([AcceptedRequest(request, embedding, self.clock())])
        return embedding

    def cancel(self, name: str) -> bool:
        call = self.proxy.live.call_of(name)
        end_cancelled(self.proxy, call)
        return bool(call)

    def stop(self, name: str) -> bool:
        call = self.proxy.live.call_of(name)
        for live in call:
            self.proxy.stop(live)
        return bool(call)

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        live = self.proxy.live.get(request_id)
        if live is None or live.is_stopping:
            return False
        self.proxy.end_thinking(live, ending)
        return True

    def _check(self, request: EngineRequest, num_new: int) -> None:
        self.culprits.check(request.account)
        if num_new > self.max_queue:
            message = (
                f"The call has {num_new} sequences, and at most {self.max_queue} may wait on this server."
            )
            raise errors.InvalidRequest(message, param="n", code="invalid_value")
        live, priority, account = self.proxy.live, request.priority, request.account
        waiting = live.waiting_by_account(priority)
        num_over = waiting.total() + num_new - self.max_queue
        share = self.max_queue // len({*waiting, account})
        if num_over > 0 and waiting[account] + num_new > share:
            expected = live.expected_waits_s(priority, self.clock())
            raise errors.QueueFull(waiting.total(), retry_after_s=wait_until_left_s(expected, num_over))

    def _with_adapter(self, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
        """Replace the name by the key: the name may move to another adapter. Raises `AdapterNotFound`."""
        name = requests[0].adapter
        if name is None:
            return requests
        offered = {status.adapter.name: status for status in self.adapters()}
        status = offered.get(name)
        if status is None or status.state is AdapterState.FAILED:
            there_is = [one for one, other in offered.items() if other.state is not AdapterState.FAILED]
            raise errors.AdapterNotFound(name, there_is, reason=status.reason if status is not None else None)
        return [msgspec.structs.replace(request, adapter=status.adapter.key) for request in requests]


def end_cancelled(proxy: RequestProxy, call: Sequence[AcceptedRequest]) -> None:
    if call:
        proxy.cancel(*[live.request.id for live in call])
    for live in call:
        live.answer.fail(live.request.id, errors.RequestCancelled("The request was cancelled on the server."))


def _wrong_kind(info: ModelInfo, wanted: str) -> errors.InvalidRequest:
    message = f"This model does not {wanted}: it {info.kind.value}."
    return errors.InvalidRequest(message, param="model", code="wrong_model_kind")
