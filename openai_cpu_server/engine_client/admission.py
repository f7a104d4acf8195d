"""What an engine accepts: calls that its model can answer, and no more of them than may wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
"""The answer where nothing is expected yet: the scheduler tells twice a second."""


def wait_until_left_s(expected_s: Sequence[float], num: int) -> float:
    """Seconds until `num` have left the queue. `expected_s` says when the first, the second, ... will.

    Those of whom nothing is known are taken to leave at the same rate.
    """
    if not expected_s:
        return UNKNOWN_S
    if num <= len(expected_s):
        return expected_s[num - 1]
    return expected_s[-1] * num / len(expected_s)


class RequestCarrier(Protocol):
    """Brings live requests to an engine or a replica, and its events back."""

    @property
    def live(self) -> AcceptedRequests: ...

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        """The sequences of one API call, or its inputs."""
        ...

    def cancel(self, *request_ids: str) -> None:
        """They are not to be computed any more. Who reads them knows, or is still to be told."""
        ...

    def stop(self, live: AcceptedRequest) -> None:
        """It ends as it is: who reads it is told so by whoever computes it."""
        ...

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """Its thoughts end behind the output that it has, as the constraint in place of its own says."""
        ...


class RequestAdmission:
    """Makes live requests of API calls, in front of an engine here and of replicas elsewhere."""

    def __init__(
        self,
        carrier: RequestCarrier,
        culprits: CulpritLedger,
        adapters: Callable[[], Iterable[AdapterStatus]],
        *,
        max_queue: int,
        max_held_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        """`adapters`: those that requests may name, and those that were refused. `max_queue` requests of each
        priority may wait. `max_held_bytes` is for each call: events that its client has not taken."""
        self._carrier = carrier
        self._culprits = culprits
        self._adapters = adapters
        self._max_queue = max_queue
        self._max_held_bytes = max_held_bytes
        self._clock = clock

    def generate(self, info: ModelInfo, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        """Raises CulpritsLimited, QueueFull, AdapterNotFound, InvalidRequest."""
        if info.kind is not ModelKind.GENERATES:
            raise _wrong_kind(info, "generate text")
        self._check(requests[0], len(requests))
        requests = self._with_adapter(requests)
        generation = GenerationAnswer(
            requests, cancel=self._carrier.cancel, clock=self._clock, max_held_bytes=self._max_held_bytes
        )
        self._carrier.accept([AcceptedRequest(request, generation, self._clock()) for request in requests])
        return generation

    def embed(self, info: ModelInfo, request: EmbedRequest) -> EmbeddingAnswer:
        """Raises CulpritsLimited, QueueFull, and InvalidRequest also for an input that is empty or too
        long."""
        _check_embeds(info, request)
        self._check(request, 1)
        embedding = EmbeddingAnswer(request, cancel=self._carrier.cancel, clock=self._clock)
        self._carrier.accept([AcceptedRequest(request, embedding, self._clock())])
        return embedding

    def cancel(self, name: str) -> bool:
        """End the API call that has this id, or of which this is one sequence; False: there is none here."""
        call = self._carrier.live.call_of(name)
        end_cancelled(self._carrier, call)
        return bool(call)

    def stop(self, name: str) -> bool:
        """End as it is what `cancel` would end; False: there is none here."""
        call = self._carrier.live.call_of(name)
        for live in call:
            self._carrier.stop(live)
        return bool(call)

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        """False: there is no such sequence here, or it is to end anyway."""
        live = self._carrier.live.get(request_id)
        if live is None or live.is_stopping:
            return False
        self._carrier.end_thinking(live, ending)
        return True

    def _check(self, request: EngineRequest, num_new: int) -> None:
        """Raises CulpritsLimited, InvalidRequest for more than may ever wait at once, and QueueFull."""
        self._culprits.check(request.account)
        if num_new > self._max_queue:
            message = f"{num_new} sequences in one call; {self._max_queue} may wait at once on this server."
            raise InvalidRequest(message, param="n", code="invalid_value")
        live, priority = self._carrier.live, request.priority
        waiting = live.count(RequestState.WAITING)[priority.label]
        num_over = waiting + num_new - self._max_queue
        if num_over > 0:
            expected = live.expected_waits_s(priority, self._clock())
            raise QueueFull(waiting, retry_after_s=wait_until_left_s(expected, num_over))

    def _with_adapter(self, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
        """The requests with the key of their adapter in place of its name: what it is called by may change
        while they run. Raises `AdapterNotFound`."""
        name = requests[0].adapter
        if name is None:
            return requests
        offered = {status.adapter.name: status for status in self._adapters()}
        status = offered.get(name)
        if status is None or status.state is AdapterState.FAILED:
            there_is = [one for one, known in offered.items() if known.state is not AdapterState.FAILED]
            raise AdapterNotFound(name, there_is, reason=status.reason if status is not None else None)
        return [msgspec.structs.replace(request, adapter=status.adapter.key) for request in requests]


def end_cancelled(carrier: RequestCarrier, call: Sequence[AcceptedRequest]) -> None:
    """Whoever reads these is told that somebody has ended them."""
    if call:
        carrier.cancel(*[live.request.id for live in call])
    for live in call:
        live.answer.fail(live.request.id, RequestCancelled("The request was cancelled on the server."))


def _check_embeds(info: ModelInfo, request: EmbedRequest) -> None:
    """Raises InvalidRequest, also for an input that is empty or too long."""
    if info.kind is ModelKind.GENERATES:
        raise _wrong_kind(info, "embed")
    limit = info.max_input_tokens
    for number, tokens in enumerate(request.inputs):
        if not 1 <= len(tokens) <= limit:
            message = f"Input {number} has {len(tokens)} tokens; this model takes 1 to {limit}."
            raise InvalidRequest(message, param="input", code="context_length_exceeded")


def _wrong_kind(info: ModelInfo, wanted: str) -> InvalidRequest:
    message = f"This model does not {wanted}: it {info.kind.value}."
    return InvalidRequest(message, param="model", code="wrong_model_kind")
