"""What an engine accepts: calls that its model can answer, and no more of them than may wait."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.requests.live_requests import LiveRequests
from openai_cpu_server.dispatch.requests.queue_room import wait_until_left_s
from openai_cpu_server.errors import InvalidRequest, QueueFull


class QueueLimit:
    """So many requests of each priority may wait."""

    def __init__(self, live: LiveRequests, *, max_queue: int, clock: Callable[[], float]) -> None:
        self._live = live
        self._max_queue = max_queue
        self._clock = clock

    def check(self, priority: Priority, num_new: int) -> None:
        """Raises InvalidRequest for more than may ever wait at once, and QueueFull."""
        if num_new > self._max_queue:
            message = f"{num_new} sequences in one call; {self._max_queue} may wait at once on this server."
            raise InvalidRequest(message, param="n", code="invalid_value")
        waiting = self._live.count(RequestState.WAITING)[priority.label]
        num_over = waiting + num_new - self._max_queue
        if num_over > 0:
            expected = self._live.expected_waits_s(priority, self._clock())
            raise QueueFull(waiting, retry_after_s=wait_until_left_s(expected, num_over))


def check_generates(info: ModelInfo) -> None:
    """Raises InvalidRequest."""
    if info.kind is not ModelKind.GENERATES:
        raise _wrong_kind(info, "generate text")


def check_embeds(info: ModelInfo, request: EmbedRequest) -> None:
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
