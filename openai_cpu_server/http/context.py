"""One request while it is served: who has sent it, what is noted about it, what it may use, and where it
ends."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import InvalidRequest, wrong_value
from openai_cpu_server.http.body import BodyBudget, BodyQuota
from openai_cpu_server.http.clients import Claim
from openai_cpu_server.http.errors import CLIENT_GONE, code_of, failure_of, is_ours
from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.keys import ANYBODY, Identity
from openai_cpu_server.http.limits import Lease
from openai_cpu_server.observe.ended import (
    AnswerUse,
    EndedCall,
    EndedRequest,
    RequestOrigin,
    RouteTaken,
    TraceParent,
)
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
    origin: RequestOrigin = RequestOrigin.HTTP
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
            if figures.audio_s:
                self.notes["audio_s"] = round(figures.audio_s, 3)
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
        self.log_ours(error)

    def log_ours(self, error: Exception) -> None:
        if is_ours(error):
            logger.error("request %s failed", self.id, exc_info=error)

    def inner(
        self,
        origin: RequestOrigin,
        *,
        id: str | None = None,
        path: str | None = None,
        has_headers: bool = False,
    ) -> Ticket:
        """The ticket of a call that came with this request, and has a line and an end of its own, in the
        same trace."""
        return Ticket(
            id or new_request_id(),
            "POST",
            path or self.path,
            path or self.route,
            origin=origin,
            trace=self.trace,
            has_headers=has_headers,
        )

    def log(self, seconds: float) -> None:
        """Writes one line, and the same as fields. `seconds` is all the time that it took."""
        route = f"{self.method} {self.path[:200]!r}".replace("'", "")
        fields: dict[str, str | int | float] = {"id": self.id, "route": route, "status": self.status or "-"}
        if self.origin is not RequestOrigin.HTTP:
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
    origin = RequestOrigin.HTTP if scope["type"] == "http" else RequestOrigin.WEBSOCKET
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


class EndedRequests:
    """Every request ends here, once, however it came in and however it went."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def end(self, ticket: Ticket) -> None:
        ended_s = time.monotonic()
        ticket.log(ended_s - ticket.started_s)
        self._watch.ended(
            EndedRequest(
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


PRIORITY_HEADER = "X-Priority"
PROGRESS_HEADER = "X-Progress"
_BY_LABEL = {priority.label: priority for priority in Priority}
_BY_TIER = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}
_CONTEXT = "openai_cpu_server.context"


class Sender(msgspec.Struct, frozen=True):
    """Who sent a body, and what they said beside it."""

    identity: Identity = ANYBODY
    priority_header: str | None = None
    """It outranks what the body says."""
    default_priority: Priority = Priority.INTERACTIVE
    """The priority of a body that names none."""
    progress_header: str | None = None
    """Whether a stream is to tell its progress, for clients that cannot say so in the body."""

    @classmethod
    def of(
        cls, identity: Identity, *, header: str | None, default: Priority, progress: str | None = None
    ) -> Sender:
        """`default` is the server's; the key's own goes before it. `progress`: that header."""
        own = identity.key.priority if identity.key else None
        return cls(identity, header, default if own is None else own, progress)

    def wants_progress(self) -> bool:
        """Raises InvalidRequest for a header that says neither."""
        if self.progress_header not in (None, "true", "false"):
            raise wrong_value(PROGRESS_HEADER, "'true' or 'false'")
        return self.progress_header == "true"

    def priority(self, *, field: str | None = None, tier: str | None = None) -> Priority:
        """`field` and `tier` stand in the body; our own field goes before OpenAI's tier.

        What exceeds the key's best is lowered to that. Raises InvalidRequest for any value that is wrong,
        also for one that another outranks.
        """
        from_header = _named(self.priority_header, PRIORITY_HEADER)
        from_field = _named(field, "priority")
        from_tier = _BY_TIER.get(tier) if tier is not None else None
        given = (priority for priority in (from_header, from_field, from_tier) if priority is not None)
        best = self.identity.key.max_priority if self.identity.key else Priority.INTERACTIVE
        return max(next(given, self.default_priority), best)  # the smaller one goes first

    def announced_priority(self) -> Priority | None:
        """The priority as far as it is known without the body; None: the header names none that there is."""
        try:
            return self.priority()
        except InvalidRequest:
            return None


def _named(label: str | None, param: str) -> Priority | None:
    if label is None:
        return None
    if label not in _BY_LABEL:
        expected = " or ".join(f"'{name}'" for name in _BY_LABEL)
        raise wrong_value(param, expected)
    return _BY_LABEL[label]


@dataclass
class RequestContext:
    """One request, from the gate to its end: handlers find it in the scope, by `context_of`.

    What comes by no request of its own, such as a message of a WebSocket or a row of a batch, has one too.
    """

    ticket: Ticket
    sender: Sender
    lease: Lease | None = None
    """Its share of its key's limits; None: it counts against none."""
    body: BodyQuota = field(default_factory=lambda: BodyQuota(BodyBudget(0), 0))
    """What of its body is in memory."""
    claim: Claim | None = None
    """What the gate has let in; None: it came by no request of its own."""
    timeout_s: float | None = None
    """The server's limit for a call, waiting included; None: there is none."""

    @property
    def identity(self) -> Identity:
        return self.sender.identity

    @property
    def owner(self) -> str:
        """Under this name they store things; "" without a key of a name."""
        return self.identity.holder or ""

    @property
    def limit_headers(self) -> dict[str, str]:
        """What is to be said of its key's limits, as far as they are known by now."""
        return {} if self.lease is None else self.lease.headers

    def identity_now(self, keys: KeyRing) -> Identity:
        """Who has opened this connection, by the keys as they are now. Raises Unauthorized, Forbidden."""
        assert self.claim is not None, "it has come through the gate"
        return self.claim.identity(keys)

    async def reserve(self, *, prompt_tokens: int, output_tokens: int) -> None:
        """As the lease does. Raises TokensLimited."""
        if self.lease is not None:
            await self.lease.reserve(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    async def settle(self) -> None:
        """A generation of the call has ended, and another one follows: what it wrote is counted."""
        if self.lease is not None:
            await self.lease.settle()

    async def refund(self) -> None:
        """The call was refused after all, so it uses nothing."""
        if self.lease is not None:
            await self.lease.refund()


def put_context(scope: Scope, context: RequestContext) -> None:
    """The gate does so, once."""
    scope[_CONTEXT] = context


def context_of(scope: Scope) -> RequestContext:
    """The context of a request that the gate has let in."""
    context = scope[_CONTEXT]
    assert isinstance(context, RequestContext)
    return context


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """What the response is to say of its key's limits; nothing where it is not metered, or not let in."""
    context = scope.get(_CONTEXT)
    return context.limit_headers if isinstance(context, RequestContext) else {}


class ServedRequest:
    """How a request that has no response of its own went."""

    def __init__(self, leases: AsyncExitStack) -> None:
        self.error: Exception | None = None
        """What it failed with; None: it went well."""
        self._leases = leases

    async def hold(self, context: RequestContext) -> None:
        """Holds the request to its key's limits from now to its end. Raises RequestsLimited."""
        if context.lease is not None:
            await self._leases.enter_async_context(context.lease)


@asynccontextmanager
async def served(
    ticket: Ticket, end: Callable[[Ticket], None], *, has_left: Callable[[], bool] = lambda: False
) -> AsyncIterator[ServedRequest]:
    """`async with` it around all that is done for a request that has no response of its own: one of a
    WebSocket, of a list of them, of a file.

    A failure ends here, and stands in `error` for whoever tells it; what cancels goes on. In any case `end`
    is called, once, when the lease has been given back. `has_left`: what ends because its client has left is
    no failure.
    """
    leases = AsyncExitStack()
    request = ServedRequest(leases)
    try:
        async with leases:
            yield request
        ticket.status = 200
    except Exception as error:
        request.error = error
        ticket.status = failure_of(error).status
        if has_left():
            ticket.log_ours(error)
        else:
            ticket.failed(error)
    finally:
        if has_left():
            ticket.client_gone()
        end(ticket)
