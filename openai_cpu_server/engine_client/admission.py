"""Acceptance of calls that the model can serve, within the limits of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import msgspec

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.model_info import AdapterState, AdapterStatus, ModelInfo, ModelKind
from openai_cpu_server.contract.request import Constraint, EngineRequest, GenerationRequest
from openai_cpu_server.engine_client.answers import EmbeddingAnswer, GenerationAnswer
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import AdapterNotFound, InvalidRequest, QueueFull, RequestCancelled

UNKNOWN_S = 1.0
"""Default before the first estimate, which the scheduler sends twice a second."""


def wait_until_left_s(expected_s: Sequence[float], num: int) -> float:
    """Return the seconds until `num` requests have left the queue, given the times of the first ones.
    Later ones are assumed to leave at the same rate."""
    if not expected_s:
        return UNKNOWN_S
    if num <= len(expected_s):
        return expected_s[num - 1]
    return expected_s[-1] * num / len(expected_s)


class RequestProxy(Protocol):
    """Transport of live requests to an engine or a replica, and of its events back."""

    @property
    def live(self) -> AcceptedRequests: ...

    def accept(self, call: Sequence[AcceptedRequest]) -> None: ...

    def cancel(self, *request_ids: str) -> None:
        """Stop computing these requests, without a notification of their readers."""

    def stop(self, live: AcceptedRequest) -> None:
        """Finish the request with its output so far. The engine that computes it notifies the reader."""

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """End the reasoning behind the present output, with `ending` as the request's new constraint."""


@dataclass(eq=False)
class RequestAdmission:
    """Creation of live requests from API calls, for a local engine or for remote replicas."""

    proxy: RequestProxy
    culprits: CulpritLedger
    adapters: Callable[[], Iterable[AdapterStatus]]
    """Adapters that requests may name, and rejected ones."""
    _: KW_ONLY
    max_queue: int
    """Waiting requests of each priority."""
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
        """Accept the inputs of an API call. Raises CulpritsLimited, QueueFull, and InvalidRequest also for
        an empty or too long input."""
        if info.kind is ModelKind.GENERATES:
            raise _wrong_kind(info, "embed")
        limit = info.max_input_tokens
        for number, tokens in enumerate(request.inputs):
            if not 1 <= len(tokens) <= limit:
                message = f"Input {number} has {len(tokens)} tokens; this model takes 1 to {limit}."
                raise InvalidRequest(message, param="input", code="context_length_exceeded")
        self._check(request, 1)
        embedding = EmbeddingAnswer(request, cancel=self.proxy.cancel, clock=self.clock)
        self.proxy.accept([AcceptedRequest(request, embedding, self.clock())])
        return embedding

    def cancel(self, name: str) -> bool:
        """End the API call with this id, or with this sequence. Return False if there is none here."""
        call = self.proxy.live.call_of(name)
        end_cancelled(self.proxy, call)
        return bool(call)

    def stop(self, name: str) -> bool:
        """Finish with its output what `cancel` would end. Return False if there is none here."""
        call = self.proxy.live.call_of(name)
        for live in call:
            self.proxy.stop(live)
        return bool(call)

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        """Return False if the sequence is not here or is about to end."""
        live = self.proxy.live.get(request_id)
        if live is None or live.is_stopping:
            return False
        self.proxy.end_thinking(live, ending)
        return True

    def _check(self, request: EngineRequest, num_new: int) -> None:
        """Check the limits for a call. Raises CulpritsLimited, InvalidRequest for more sequences than may
        ever wait, and QueueFull."""
        self.culprits.check(request.account)
        if num_new > self.max_queue:
            message = f"{num_new} sequences in one call; {self.max_queue} may wait at once on this server."
            raise InvalidRequest(message, param="n", code="invalid_value")
        live, priority = self.proxy.live, request.priority
        waiting = live.count(RequestState.WAITING)[priority.label]
        num_over = waiting + num_new - self.max_queue
        if num_over > 0:
            expected = live.expected_waits_s(priority, self.clock())
            raise QueueFull(waiting, retry_after_s=wait_until_left_s(expected, num_over))

    def _with_adapter(self, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
        """Replace the name by the key: the name may move to another adapter. Raises `AdapterNotFound`."""
        name = requests[0].adapter
        if name is None:
            return requests
        offered = {status.adapter.name: status for status in self.adapters()}
        status = offered.get(name)
        if status is None or status.state is AdapterState.FAILED:
            there_is = [one for one, other in offered.items() if other.state is not AdapterState.FAILED]
            raise AdapterNotFound(name, there_is, reason=status.reason if status is not None else None)
        return [msgspec.structs.replace(request, adapter=status.adapter.key) for request in requests]


def end_cancelled(proxy: RequestProxy, call: Sequence[AcceptedRequest]) -> None:
    if call:
        proxy.cancel(*[live.request.id for live in call])
    for live in call:
        live.answer.fail(live.request.id, RequestCancelled("The request was cancelled on the server."))


def _wrong_kind(info: ModelInfo, wanted: str) -> InvalidRequest:
    message = f"This model does not {wanted}: it {info.kind.value}."
    return InvalidRequest(message, param="model", code="wrong_model_kind")
