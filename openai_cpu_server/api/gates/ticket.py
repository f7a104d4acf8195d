"""What is noted about one request while it is served, and where it ends: the log's line, and the watch."""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

from openai_cpu_server.api.errors import CLIENT_GONE, code_of, is_ours
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.observe.ended import AnswerUse, Ended, EndedCall, Origin, RouteTaken, TraceParent
from openai_cpu_server.observe.watch import Watch

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("openai_cpu_server.requests")

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACE_STATE = 512
_SCOPE_KEY = "openai_cpu_server.ticket"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER_METHOD = OTHER_ROUTE = "other"
"""How methods and paths are called that the server does not know: clients cannot make up more."""


@dataclass
class Ticket:
    """It lives as long as its request. Whoever knows something for the log adds it to `notes`."""

    id: str
    method: str
    path: str
    route: str = OTHER_ROUTE
    """The path of the route that was matched, as the table has it."""
    origin: Origin = Origin.HTTP
    trace: TraceParent | None = None
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    """Set when the response begins."""
    client: str | None = None
    """The name of its key."""
    priority: Priority | None = None
    """The priority of a request that generates or embeds. Until its body is read, and if that is refused, it
    is what header, key and server say."""
    code: str | None = None
    """The code of its error."""
    call: EndedCall | None = None
    """What was generated or embedded; set when that has ended."""
    routed: RouteTaken | None = None
    """The way that a router has sent it."""
    has_headers: bool = True
    """Its answer has headers of its own; False: it is one of many in a body or a file."""
    answer: AnswerUse | None = None
    """What the cache of answers did for it; None: it was not asked."""
    is_quiet: bool = False
    """It gets no line in the log and no trace."""
    notes: dict[str, str | int | float] = field(default_factory=dict)

    def generated(self, call: EndedCall) -> None:
        """Notes what a call came to; also of one that was left before its end."""
        self.call, figures = call, call.figures
        self.notes["prompt_tokens"] = figures.prompt_tokens
        if call.inputs is None:
            self.notes["cached_tokens"] = figures.cached_tokens
            self.notes["output_tokens"] = figures.output_tokens
            self.notes["finish_reason"] = ",".join(sorted(set(call.finish_reasons)))
        else:
            self.notes["inputs"] = call.inputs
        self.notes["queue_ms"] = round(figures.queue_ms, 1)
        if call.ttft_s is not None:
            self.notes["ttft_ms"] = round(1000 * call.ttft_s, 1)

    def sent_to(self, routed: RouteTaken) -> None:
        """Notes what a router has decided, or decided anew."""
        self.routed = routed
        self.notes["routed"] = routed.model
        self.notes["routed_why"] = routed.reason

    def recalled(self, use: AnswerUse, similarity: float | None) -> None:
        """Notes what the cache of answers had."""
        self.answer = use
        self.notes["cache"] = use.value
        if similarity is not None:
            self.notes["similarity"] = round(similarity, 4)

    def client_gone(self) -> None:
        self.status = CLIENT_GONE

    def failed(self, error: Exception) -> None:
        """Notes what its client is told instead of an answer. What went wrong here goes to the log, whole."""
        self.notes["error"] = type(error).__name__
        self.code = code_of(error)
        if is_ours(error):
            logger.error("request %s failed", self.id, exc_info=error)

    def inner(self, origin: Origin, *, id: str | None = None, path: str | None = None) -> Ticket:
        """The ticket of a call that came with this request, and has a line and an end of its own, in the
        same trace."""
        return Ticket(
            id or new_request_id(),
            "POST",
            path or self.path,
            path or self.route,
            origin=origin,
            trace=self.trace,
            has_headers=False,
        )

    def log(self, seconds: float) -> None:
        """Writes one line, and the same as fields. `seconds` is all the time that it took."""
        route = f"{self.method} {self.path[:200]!r}".replace("'", "")
        fields: dict[str, str | int | float] = {"id": self.id, "route": route, "status": self.status or "-"}
        if self.origin is not Origin.HTTP:
            fields["origin"] = self.origin.value
        if self.client is not None:
            fields["key"] = self.client
        if self.priority is not None:
            fields["priority"] = self.priority.label
        if self.trace is not None:
            fields["trace_id"] = self.trace.trace_id
        fields |= {**self.notes, "total_ms": round(1000 * seconds, 1)}
        line = " ".join(f"{name}={value}" for name, value in fields.items())
        request_logger.log(
            logging.DEBUG if self.is_quiet else logging.INFO, "%s", line, extra={"fields": fields}
        )


def open_ticket(scope: Scope) -> Ticket:
    """Makes the ticket, with the client's own request id, where it sent a sane one."""
    headers = Headers(scope=scope)
    given = headers.get("x-request-id", "")
    request_id = given if _SANE_ID.fullmatch(given) else new_request_id()
    origin = Origin.HTTP if scope["type"] == "http" else Origin.WEBSOCKET
    method = scope.get("method", "GET")  # which a WebSocket's handshake is
    ticket = Ticket(request_id, method, scope["path"], origin=origin, trace=_trace(headers))
    scope[_SCOPE_KEY] = ticket
    return ticket


def new_request_id() -> str:
    return "req_" + secrets.token_hex(16)


def _trace(headers: Headers) -> TraceParent | None:
    """A malformed header begins a trace of its own, as the specification has it."""
    parent = headers.get("traceparent", "")
    if not _TRACE_PARENT.fullmatch(parent):
        return None
    return TraceParent(parent, headers.get("tracestate", "")[:_MAX_TRACE_STATE])


def ticket_of(scope: Scope) -> Ticket:
    ticket = scope[_SCOPE_KEY]
    assert isinstance(ticket, Ticket)
    return ticket


class Endings:
    """Every request ends here, once, however it came in and however it went."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def end(self, ticket: Ticket) -> None:
        ended_s = time.monotonic()
        ticket.log(ended_s - ticket.started_s)
        self._watch.ended(
            Ended(
                id=ticket.id,
                origin=ticket.origin,
                method=ticket.method if ticket.method in _METHODS else _OTHER_METHOD,
                route=ticket.route,
                priority=ticket.priority.label if ticket.priority is not None else "none",
                status=CLIENT_GONE if ticket.status is None else ticket.status,
                code=ticket.code,
                started_s=ticket.started_s,
                ended_s=ended_s,
                is_quiet=ticket.is_quiet,
                call=ticket.call,
                trace=ticket.trace,
                routed=ticket.routed,
                answer=ticket.answer,
                key=ticket.client or "",
            )
        )

    def row_begins(self) -> None:
        """A row of a batch job begins. Then comes `end` or `row_put_off`, and `row_left` in any case."""
        self._watch.metrics.rows_running.inc()

    def row_put_off(self) -> None:
        """The row will be run again: this was not its end."""
        self._watch.metrics.row_put_off()

    def row_left(self) -> None:
        self._watch.metrics.rows_running.dec()
