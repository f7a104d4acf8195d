"""The facts about a request that has ended. They are collected once, and all observers read them."""

from __future__ import annotations

import enum

import msgspec

from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.usage import Amounts
from openai_cpu_server.observe.distribution import Distribution


class Origin(enum.Enum):
    """The way in which a request came in."""

    HTTP = "http"
    BATCH = "batch"
    """The request is a row of a batch."""
    WEBSOCKET = "websocket"
    BACKGROUND = "background"
    """A response that is made while its client need not listen."""


class TraceParent(msgspec.Struct, frozen=True):
    """The headers of W3C's trace context; `traceparent` is surely well-formed."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]


class EndedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that generated, embedded or scored; it may have ended early."""

    figures: Figures
    model: str
    """The name of the one that has answered."""
    finish_reasons: tuple[str, ...] = ()
    """The reasons of all its sequences."""
    submitted_s: float
    """The start on the monotonic clock. The three phases follow one another from there."""
    ttft_s: float | None = None
    """The time from the request's arrival to its first token; None: there was none."""
    gaps: Distribution
    """The times between tokens of a sequence."""
    adapter: str | None = None
    """`MODEL:NAME`; None: the model as it is."""
    inputs: int | None = None
    """Inputs that were embedded or scored; 0 if it ended early. None: it generated."""


class RouteTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Which way a router has sent a request."""

    router: str
    model: str
    reason: str
    """One of few words."""


class AnswerUse(enum.Enum):
    """What the cache of answers did for a request."""

    EXACT = "exact"
    """It told the answer to the same question."""
    SEMANTIC = "semantic"
    """It told the answer to a similar question."""
    MISS = "miss"
    BYPASS = "bypass"
    """The client wants none of it, or each answer is drawn anew."""

    @property
    def is_hit(self) -> bool:
        return self in (AnswerUse.EXACT, AnswerUse.SEMANTIC)


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    origin: Origin
    method: str
    route: str
    """The route as the server defines it (`/v1/models/{id}`), one of few; `other` for unknown ones."""
    priority: str
    """The label of the priority; for a request whose body is refused, what header, key and server say without
    it. `none` for a request that was not meant to generate, was refused before its key was known, or whose
    header names no known priority.
    """
    status: int
    code: str | None
    """The code in the error object; None: there was no error."""
    started_s: float
    """The start on the monotonic clock."""
    ended_s: float
    key: str = ""
    """The name of the API key; "" for one without a name, and where none is needed."""
    is_quiet: bool = False
    """Whether machines ask this all the time."""
    call: EndedCall | None = None
    """None: nothing was generated."""
    trace: TraceParent | None = None
    routed: RouteTaken | None = None
    """None: it named its model itself, or came to no model."""
    answer: AnswerUse | None = None
    """None: there is no cache of answers, or it was not asked."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


def amounts_of(request: Ended, call: EndedCall) -> Amounts:
    """What a call came to for its key. Tokens count from the first token on that it has brought."""
    has_brought = bool(call.inputs) if call.inputs is not None else call.ttft_s is not None
    if not has_brought:
        return Amounts(requests=1)
    if request.answer is not None and request.answer.is_hit:
        return Amounts(
            recalled_requests=1,
            recalled_input_tokens=call.figures.prompt_tokens,
            recalled_output_tokens=call.figures.output_tokens,
        )
    return Amounts(
        requests=1,
        input_tokens=call.figures.prompt_tokens,
        cached_tokens=call.figures.cached_tokens,
        output_tokens=call.figures.output_tokens,
    )
