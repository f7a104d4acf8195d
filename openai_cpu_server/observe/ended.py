"""What is known of a request when it has ended: made once for each, and read by all who watch."""

from __future__ import annotations

import enum

import msgspec

from openai_cpu_server.observe.distribution import Distribution


class Origin(enum.Enum):
    """How a request came in."""

    HTTP = "http"
    BATCH = "batch"
    """A row of a batch."""
    WEBSOCKET = "websocket"


class TraceParent(msgspec.Struct, frozen=True):
    """The headers of W3C's trace context, `traceparent` known to be well-formed."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]


class CallFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one generating call came to; it may have ended before its time. `_s` are seconds."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reasons: tuple[str, ...]
    """One for each of its sequences."""
    submitted_s: float
    """On the monotonic clock. The three phases follow each other from there."""
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float | None
    """From the request's arrival; None: nothing came."""
    gaps: Distribution
    """Between tokens of a sequence."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    origin: Origin
    method: str
    route: str
    """As the server writes it (`/v1/models/{id}`), one of few; `other` for what it does not know."""
    priority: str
    """Its label; of a request whose body is refused, as header, key and server say without it. `none`: it
    was not meant to generate, was refused before its key was known, or its header names no known priority."""
    status: int
    code: str | None
    """Of its error object."""
    started_s: float
    """On the monotonic clock."""
    ended_s: float
    is_quiet: bool = False
    """Machines ask this all the time."""
    call: CallFigures | None = None
    """None: it generated nothing."""
    trace: TraceParent | None = None

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s
