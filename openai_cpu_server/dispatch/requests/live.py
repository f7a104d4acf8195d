"""A request that has been accepted and has not ended: what is remembered of it, and what is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from openai_cpu_server.contract.adapter import adapter_name
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import LiveRequest, RequestState
from openai_cpu_server.contract.messages import Place, Submit
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.requests.awaiting import Awaiting


def names_of(request_id: str) -> tuple[str, str]:
    """What a request may be called by: its own id, and its API call's, of which it is one sequence."""
    return request_id, request_id.partition("/")[0]


class Expected(msgspec.Struct, frozen=True):
    """What a request that waits can expect."""

    position: int
    first_token_s: float
    """On the dispatcher's clock."""


@dataclass(eq=False)
class Live:
    """An accepted request that has not ended, with what it has produced."""

    request: GenerationRequest | EmbedRequest
    answer: Awaiting
    submitted_s: float
    output: list[int] = field(default_factory=list)
    num_embedded: int = 0
    """How many inputs of an `EmbedRequest` have their vectors."""
    suspicion: int = 0
    """How much it is suspected of killing the engine, in the points of `trials`."""
    has_advanced: bool = False
    """It has gained tokens or vectors in the engine process that now runs."""
    state: RequestState = RequestState.WAITING
    expected: Expected | None = None

    @property
    def adapter(self) -> str | None:
        """The key of its adapter."""
        return self.request.adapter if isinstance(self.request, GenerationRequest) else None

    @property
    def call(self) -> str:
        """The id of the API call that it belongs to."""
        return names_of(self.request.id)[1]

    def submit(self) -> Submit:
        return Submit(request=self.request, output=tuple(self.output), num_embedded=self.num_embedded)

    @property
    def num_inputs(self) -> int | None:
        """None: it generates."""
        return len(self.request.inputs) if isinstance(self.request, EmbedRequest) else None

    @property
    def num_prompt_tokens(self) -> int:
        """Those of all inputs, where texts are embedded."""
        request = self.request
        return request.num_tokens if isinstance(request, EmbedRequest) else len(request.tokens)

    def run(self) -> None:
        self.state, self.expected = RequestState.RUNNING, None

    def wait(self) -> None:
        """Its place is not known, and it may be outside the engine."""
        self.state, self.expected = RequestState.WAITING, None

    def wait_at(self, place: Place, now_s: float) -> None:
        self.state = RequestState.WAITING
        self.expected = Expected(place.position, now_s + place.first_token_ms / 1000)

    def snapshot(self, now_s: float) -> LiveRequest:
        expected = self.expected
        return LiveRequest(
            id=self.request.id,
            priority=self.request.priority,
            state=self.state,
            prompt_tokens=self.num_prompt_tokens,
            output_tokens=len(self.output),
            age_s=now_s - self.submitted_s,
            client=self.request.client,
            position=expected.position if expected else None,
            first_token_ms=max(0.0, 1000 * (expected.first_token_s - now_s)) if expected else None,
            num_inputs=self.num_inputs,
            num_embedded=self.num_embedded,
            adapter=adapter_name(self.adapter) if self.adapter is not None else None,
        )
