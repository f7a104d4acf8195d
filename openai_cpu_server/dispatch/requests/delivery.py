"""Live requests and those who wait for them: what an engine tells comes to the answer that it is for.

It does not matter which engine tells it, or where that runs: whoever carries requests to engines owns one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.requests.awaiting import TakesTokens, TakesVectors
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.dispatch.requests.live_requests import LiveRequests
from openai_cpu_server.errors import GenerationFailed, ServerError


class Totals(msgspec.Struct):
    """What has been served since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Delivery:
    """Owns the live requests from their acceptance to their one end."""

    def __init__(self, clock: Callable[[], float], has_left: Callable[[Live], None]) -> None:
        """`has_left` is told of each request that does not live any more."""
        self.live = LiveRequests()
        self.totals = Totals()
        self.last_use_s = clock()
        """When a request last came or ended, on the clock; at first: when this was made."""
        self._clock = clock
        self._has_left = has_left

    def accept(self, call: Sequence[Live]) -> None:
        """The sequences of one API call, or its inputs."""
        for live in call:
            self.live.add(live)
        self.totals.requests += 1
        self.totals.prompt_tokens += sum({_prompt(live): live.num_prompt_tokens for live in call}.values())
        self.used()

    def used(self) -> None:
        """It is in use at this moment."""
        self.last_use_s = self._clock()

    def deliver(self, event: TokenEvent) -> Live | None:
        """Returns who has gained tokens; None: it has left while they were on their way."""
        live = self.live.get(event.id)
        if live is None:
            return None
        if not isinstance(live.answer, TakesTokens):  # its file has become one of another kind
            self._fail_kind(live)
            return None
        self.live.advanced(event)
        live.answer.push(event)
        if event.finish is not None:
            self.totals.output_tokens += event.finish.output_tokens
            self._gone(live)
        return live

    def deliver_vectors(self, event: Embedded) -> Live | None:
        """Returns who has gained vectors; None: it has left while they were on their way."""
        live = self.live.get(event.id)
        if live is None:
            return None
        if not isinstance(live.answer, TakesVectors):
            self._fail_kind(live)
            return None
        self.live.embedded(event)
        self.used()
        live.answer.push(event)
        if self.live.get(event.id) is None:
            self._gone(live)
        return live

    def fail(self, requests: Iterable[Live], error: Callable[[], ServerError]) -> None:
        """`error` makes a new one for each, for each is raised somewhere else."""
        for live in requests:
            self.forget(live.request.id)
            live.answer.fail(live.request.id, error())

    def forget(self, request_id: str) -> None:
        """Who reads it knows, or is still to be told."""
        live = self.live.remove(request_id)
        if live is not None:
            self._gone(live)
        self.used()

    def _fail_kind(self, live: Live) -> None:
        self.fail([live], lambda: GenerationFailed("The model's file is of another kind now."))

    def _gone(self, live: Live) -> None:
        self.used()
        self._has_left(live)


def _prompt(live: Live) -> tuple[int, ...] | str:
    """The choices of a call mostly share one, which counts once."""
    return live.request.tokens if isinstance(live.request, GenerationRequest) else live.request.id
