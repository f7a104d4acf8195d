"""A request that has been accepted and has not ended: what the client remembers of it, and what it shows."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import msgspec

from openai_cpu_server.contract.messages import Place, Submit
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.dispatch.generation import Generation


class RequestState(enum.Enum):
    WAITING = "waiting"
    """It is not in the engine's slots: new, preempted, or the engine is restarting."""
    RUNNING = "running"


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for those who watch."""

    id: str
    """The API call's id and its sequence's number: `CALL/0`."""
    priority: Priority
    state: RequestState
    prompt_tokens: int
    output_tokens: int
    """So far, of those whose text is out."""
    age_s: float
    client: str
    position: int | None
    """1 is next; None: it runs, or it is not among the first that wait."""
    first_token_ms: float | None
    """Estimate from now, where there is a position."""


class Expected(msgspec.Struct, frozen=True):
    """Of a request that waits."""

    position: int
    first_token_s: float
    """On the client's clock."""


@dataclass
class Live:
    """An accepted request that has not ended, with what it has produced."""

    request: GenerationRequest
    generation: Generation
    submitted_s: float
    output: list[int] = field(default_factory=list)
    suspicion: int = 0
    """Of killing the engine; see `recovery`."""
    has_advanced: bool = False
    """In the engine process that now runs."""
    state: RequestState = RequestState.WAITING
    expected: Expected | None = None

    def submit(self) -> Submit:
        return Submit(request=self.request, output=tuple(self.output))

    def run(self) -> None:
        self.state, self.expected = RequestState.RUNNING, None

    def wait(self) -> None:
        """Somewhere in the queue, or outside it."""
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
            prompt_tokens=len(self.request.tokens),
            output_tokens=len(self.output),
            age_s=now_s - self.submitted_s,
            client=self.request.client,
            position=expected.position if expected else None,
            first_token_ms=max(0.0, 1000 * (expected.first_token_s - now_s)) if expected else None,
        )
