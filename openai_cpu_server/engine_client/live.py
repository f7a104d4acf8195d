"""Accepted requests that have not ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.engine import LiveRequest, RequestState
from openai_cpu_server.contract.messages import (
    CancelRequest,
    FinishReason,
    ModelLoading,
    QueuePlace,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import adapter_name
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.errors import GenerationFailed, ServerError


class AnswerSink(Protocol):
    """Receiver of events, whose methods return at once."""

    def start(self) -> None: ...

    def wait_at(self, place: QueuePlace | ModelLoading) -> None: ...

    def push(self, event: TokenEvent | Embedded) -> None: ...

    def fail(self, request_id: str, error: ServerError) -> None: ...


def names_of(request_id: str) -> tuple[str, str]:
    return request_id, request_id.partition("/")[0]


class ExpectedStart(msgspec.Struct, frozen=True):
    position: int
    first_token_s: float
    """Time on the proxy's clock."""


@dataclass(eq=False)
class AcceptedRequest:
    request: GenerationRequest | EmbedRequest
    answer: AnswerSink
    submitted_s: float
    output: list[int] = field(default_factory=list)
    num_embedded: int = 0
    suspicion: int = 0
    """Points of `culprits`, or replicas lost with it."""
    has_advanced: bool = False
    """True after output in the present process."""
    state: RequestState = RequestState.WAITING
    expected: ExpectedStart | None = None
    is_stopping: bool = False
    num_replaced: int = 0
    """Resubmissions whose predecessor has not finished. Until then events are its own."""

    @property
    def call(self) -> str:
        return names_of(self.request.id)[1]

    def commands(self, request_id: str | None = None) -> Iterator[Submit | CancelRequest]:
        """Yield the commands for an engine that names the request `request_id`."""
        name = request_id or self.request.id
        request = msgspec.structs.replace(self.request, id=name)
        yield Submit(request=request, output=tuple(self.output), num_embedded=self.num_embedded)
        if self.is_stopping:
            yield CancelRequest(id=name, reason=FinishReason.STOP)

    def end_thinking(self, ending: Constraint) -> None:
        assert isinstance(self.request, GenerationRequest), "embeddings have no reasoning"
        assert ending.thinking is not None, "it says how"
        thinking = msgspec.structs.replace(ending.thinking, ends_at=len(self.output))
        constraint = msgspec.structs.replace(ending, thinking=thinking)
        self.request = msgspec.structs.replace(self.request, constraint=constraint)

    @property
    def num_inputs(self) -> int | None:
        return len(self.request.inputs) if isinstance(self.request, EmbedRequest) else None

    def advance(self, event: TokenEvent | Embedded) -> bool:
        """Return True for the last event."""
        if isinstance(event, TokenEvent):
            self.output.extend(event.tokens)
            return event.finish is not None
        self.num_embedded += event.count
        return event.error is not None or self.num_embedded == self.num_inputs

    def wait(self) -> None:
        self.state, self.expected = RequestState.WAITING, None

    def wait_at(self, place: QueuePlace, now_s: float) -> None:
        self.state = RequestState.WAITING
        self.expected = ExpectedStart(place.position, now_s + place.first_token_ms / 1000)

    def snapshot(self, now_s: float) -> LiveRequest:
        expected = self.expected
        return LiveRequest(
            id=self.request.id,
            priority=self.request.priority,
            state=self.state,
            prompt_tokens=self.request.num_tokens,
            output_tokens=len(self.output),
            age_s=now_s - self.submitted_s,
            client=self.request.client,
            position=expected.position if expected else None,
            first_token_ms=max(0.0, 1000 * (expected.first_token_s - now_s)) if expected else None,
            num_inputs=self.num_inputs,
            num_embedded=self.num_embedded,
            adapter=adapter_name(self.request.adapter) if self.request.adapter is not None else None,
        )


class AcceptedRequests:
    def __init__(self) -> None:
        self._live: dict[str, AcceptedRequest] = {}

    def __iter__(self) -> Iterator[AcceptedRequest]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: AcceptedRequest) -> None:
        self._live[live.request.id] = live

    def snapshots(self, now_s: float) -> list[LiveRequest]:
        return [live.snapshot(now_s) for live in self]

    def get(self, request_id: str) -> AcceptedRequest | None:
        return self._live.get(request_id)

    def call_of(self, name: str) -> list[AcceptedRequest]:
        """Return the requests of a call or a sequence (`CALL/0`)."""
        answers = {live.answer for live in self if name in names_of(live.request.id)}
        return [live for live in self if live.answer in answers]

    def count(self, state: RequestState) -> dict[str, int]:
        counts = Counter(live.request.priority for live in self._live.values() if live.state is state)
        return {priority.label: counts[priority] for priority in Priority}

    def waiting_by_account(self, priority: Priority) -> Counter[str]:
        waiting = (live for live in self._live.values() if live.state is RequestState.WAITING)
        return Counter(live.request.account for live in waiting if live.request.priority is priority)

    def expected_waits_s(self, priority: Priority, now_s: float) -> list[float]:
        """Times until the first tokens of requests near the queue's head, ascending."""
        waiting = [live for live in self if live.request.priority is priority and live.expected]
        return sorted(max(0.0, live.expected.first_token_s - now_s) for live in waiting if live.expected)

    def computing(self, ids: tuple[str, ...]) -> list[AcceptedRequest]:
        computing = [self._live[i] for i in ids if i in self._live]
        for live in computing:
            live.state, live.expected = RequestState.RUNNING, None
        return computing

    def preempted(self, ids: Iterable[str]) -> None:
        for live in [self._live[i] for i in ids if i in self._live]:
            live.wait()

    def waiting(
        self, places: Iterable[QueuePlace], now_s: float, *, among: Iterable[AcceptedRequest] | None = None
    ) -> dict[AnswerSink, QueuePlace]:
        """Return the first place of every call that waits as a whole. `among`: requests of this queue, if
        there are several."""
        foremost: dict[AnswerSink, QueuePlace] = {}
        for live in self._live.values() if among is None else among:
            live.expected = None
        for place in sorted(places, key=lambda place: place.position):
            live_there = self._live.get(place.id)
            if live_there is not None:
                live_there.wait_at(place, now_s)
                foremost.setdefault(live_there.answer, place)
        running = {live.answer for live in self if live.state is RequestState.RUNNING}
        return {answer: place for answer, place in foremost.items() if answer not in running}

    def finish(self, live: AcceptedRequest) -> None:
        """Remove a request. The culprit search learns of it later."""
        del self._live[live.request.id]

    def remove(self, request_id: str) -> AcceptedRequest | None:
        live = self._live.pop(request_id, None)
        if live is not None:
            live.suspicion = 0
        return live

    def answers(self) -> set[AnswerSink]:
        return {live.answer for live in self._live.values()}


class ServedTotals(msgspec.Struct):
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Delivery:
    def __init__(self, clock: Callable[[], float], has_left: Callable[[AcceptedRequest], None]) -> None:
        self.live = AcceptedRequests()
        self.totals = ServedTotals()
        self.last_use_s = clock()
        """Clock time of the last arrival or end, at first of construction."""
        self._clock = clock
        self._has_left = has_left

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        for live in call:
            self.live.add(live)
        self.totals.requests += 1
        self.totals.prompt_tokens += sum({_prompt(live): live.request.num_tokens for live in call}.values())
        self.used()

    def used(self) -> None:
        self.last_use_s = self._clock()

    def deliver(self, event: TokenEvent | Embedded) -> AcceptedRequest | None:
        """Return the request that has advanced, or None if it has left."""
        live = self.live.get(event.id)
        if live is None:
            return None
        finish = event.finish if isinstance(event, TokenEvent) else None
        if live.num_replaced:
            live.num_replaced -= finish is not None
            return None
        if isinstance(event, TokenEvent) is not isinstance(live.request, GenerationRequest):
            self.fail([live], lambda: GenerationFailed("The model's file is of another kind now."))
            return None
        is_over = live.advance(event)
        if is_over:
            self.live.finish(live)
        live.answer.push(event)
        self.totals.output_tokens += finish.output_tokens if finish is not None else 0
        if is_over:
            self._gone(live)
        return live

    def fail(self, requests: Iterable[AcceptedRequest], error: Callable[[], ServerError]) -> None:
        """`error`: makes a new error for each, because each is raised elsewhere."""
        for live in requests:
            self.forget(live.request.id)
            live.answer.fail(live.request.id, error())

    def forget(self, request_id: str) -> None:
        live = self.live.remove(request_id)
        if live is not None:
            self._gone(live)
        self.used()

    def _gone(self, live: AcceptedRequest) -> None:
        self.used()
        self._has_left(live)


def _prompt(live: AcceptedRequest) -> tuple[int, ...] | str:
    """The choices of a call usually share one prompt, which counts once."""
    return live.request.tokens if isinstance(live.request, GenerationRequest) else live.request.id
