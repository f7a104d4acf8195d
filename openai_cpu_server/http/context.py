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
from openai_cpu_server.http.errors import CLIENT_GONE, code_of, failure_of, is_internal
from openai_cpu_server.http.keys import ANYBODY, Credentials, Identity, KeyRing
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.observe import ended
from openai_cpu_server.observe.telemetry import Telemetry

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("openai_cpu_server.requests")

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACE_STATE = 512
_SCOPE_KEY = "openai_cpu_server.request_log"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER_METHOD = OTHER_ROUTE = "other"
"""Clients can invent any number of methods and paths."""


@dataclass
class RequestLog:
    """Any part of the server may add `notes`."""

    id: str
    method: str
    path: str
    route: str = OTHER_ROUTE
    origin: ended.RequestOrigin = ended.RequestOrigin.HTTP
    trace: ended.TraceParent | None = None
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    client: str | None = None
    """Name of the key."""
    priority: Priority | None = None
    """Requests that generate or embed. Provisional until the body is valid."""
    code: str | None = None
    call: ended.EndedCall | None = None
    routed: ended.RouteTaken | None = None
    has_headers: bool = True
    """False for one of several requests in a body or file."""
    answer: ended.AnswerUse | None = None
    is_quiet: bool = False
    notes: dict[str, str | int | float] = field(default_factory=dict)

    def generated(self, call: ended.EndedCall) -> None:
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

    def sent_to(self, routed: ended.RouteTaken) -> None:
        self.routed = routed
        self.notes["routed"] = routed.model
        self.notes["routed_why"] = routed.reason

    def answered_from_cache(self, use: ended.AnswerUse, similarity: float | None) -> None:
        self.answer = use
        self.notes["cache"] = use.value
        if similarity is not None:
            self.notes["similarity"] = round(similarity, 4)

    def client_gone(self) -> None:
        self.status = CLIENT_GONE

    def failed(self, error: Exception) -> None:
        self.notes["error"] = type(error).__name__
        self.code = code_of(error)
        self.log_ours(error)

    def log_ours(self, error: Exception) -> None:
        if is_internal(error):
            logger.error("request %s failed", self.id, exc_info=error)

    def inner(
        self,
        origin: ended.RequestOrigin,
        *,
        id: str | None = None,
        path: str | None = None,
        has_headers: bool = False,
    ) -> RequestLog:
        """Log a call within this request separately, in the same trace."""
        return RequestLog(
            id or new_request_id(),
            "POST",
            path or self.path,
            path or self.route,
            origin=origin,
            trace=self.trace,
            has_headers=has_headers,
        )

    def log(self, seconds: float) -> None:
        route = f"{self.method} {self.path[:200]!r}".replace("'", "")
        fields: dict[str, str | int | float] = {"id": self.id, "route": route, "status": self.status or "-"}
        if self.origin is not ended.RequestOrigin.HTTP:
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


def open_request_log(scope: Scope) -> RequestLog:
    headers = Headers(scope=scope)
    client_id, parent = headers.get("x-request-id", ""), headers.get("traceparent", "")
    request_id = client_id if _SANE_ID.fullmatch(client_id) else new_request_id()
    origin = ended.RequestOrigin.HTTP if scope["type"] == "http" else ended.RequestOrigin.WEBSOCKET
    method = scope.get("method", "GET")  # which a WebSocket's handshake is
    trace = None  # a malformed header starts a new trace, as the specification requires
    if _TRACE_PARENT.fullmatch(parent):
        trace = ended.TraceParent(parent, headers.get("tracestate", "")[:_MAX_TRACE_STATE])
    request_log = RequestLog(request_id, method, scope["path"], origin=origin, trace=trace)
    scope[_SCOPE_KEY] = request_log
    return request_log


def new_request_id() -> str:
    return "req_" + secrets.token_hex(16)


def request_log_of(scope: Scope) -> RequestLog:
    request_log = scope[_SCOPE_KEY]
    assert isinstance(request_log, RequestLog)
    return request_log


@dataclass(frozen=True)
class RequestHistory:
    telemetry: Telemetry

    def end(self, request_log: RequestLog) -> None:
        ended_s = time.monotonic()
        request_log.log(ended_s - request_log.started_s)
        self.telemetry.ended(
            ended.EndedRequest(
                id=request_log.id,
                origin=request_log.origin,
                method=request_log.method if request_log.method in _METHODS else _OTHER_METHOD,
                route=request_log.route,
                priority=request_log.priority.label if request_log.priority is not None else "none",
                status=CLIENT_GONE if request_log.status is None else request_log.status,
                code=request_log.code,
                started_s=request_log.started_s,
                ended_s=ended_s,
                is_quiet=request_log.is_quiet,
                call=request_log.call,
                trace=request_log.trace,
                routed=request_log.routed,
                answer=request_log.answer,
                key=request_log.client or "",
            )
        )


PRIORITY_HEADER = "X-Priority"
PROGRESS_HEADER = "X-Progress"
_BY_LABEL = {priority.label: priority for priority in Priority}
_BY_TIER = {"priority": Priority.INTERACTIVE, "flex": Priority.BATCH}
_CONTEXT = "openai_cpu_server.context"


class Caller(msgspec.Struct, frozen=True):
    identity: Identity = ANYBODY
    priority_header: str | None = None
    """Overrides the body."""
    default_priority: Priority = Priority.INTERACTIVE
    progress_header: str | None = None

    @classmethod
    def of(cls, identity: Identity, headers: Headers, default: Priority) -> Caller:
        """`default`: the server's, which the key's own overrides."""
        own = identity.key.priority if identity.key else None
        priority, progress = headers.get(PRIORITY_HEADER), headers.get(PROGRESS_HEADER)
        return cls(identity, priority, default if own is None else own, progress)

    def wants_progress(self) -> bool:
        """Read the header. Raises InvalidRequest."""
        if self.progress_header not in (None, "true", "false"):
            raise wrong_value(PROGRESS_HEADER, "'true' or 'false'")
        return self.progress_header == "true"

    def priority(self, *, field: str | None = None, tier: str | None = None) -> Priority:
        """Prefer our `field` to OpenAI's `tier`, up to the key's best. Raises InvalidRequest, also for an
        overridden value."""
        from_header = _named(self.priority_header, PRIORITY_HEADER)
        from_field = _named(field, "priority")
        from_tier = _BY_TIER.get(tier) if tier is not None else None
        named = (priority for priority in (from_header, from_field, from_tier) if priority is not None)
        best = self.identity.key.max_priority if self.identity.key else Priority.INTERACTIVE
        return max(next(named, self.default_priority), best)  # the smaller one goes first

    def announced_priority(self) -> Priority | None:
        """Return the priority before the body is read, or None for an invalid header."""
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
    """State from the gate to the end, also for a message or batch row."""

    request_log: RequestLog
    caller: Caller
    reservation: Reservation
    body: BodyQuota = field(default_factory=lambda: BodyQuota(BodyBudget(0), 0))
    credentials: Credentials | None = None
    """Credentials of the gate, or None for a message or row."""
    timeout_s: float | None = None
    """Limit that includes waiting, or None."""
    lenient: bool = False
    """True ignores bodies' unknown fields."""

    @property
    def identity(self) -> Identity:
        return self.caller.identity

    @property
    def owner(self) -> str:
        """Owner of stored objects, or "" without a named key."""
        return self.identity.holder or ""

    @property
    def limit_headers(self) -> dict[str, str]:
        return self.reservation.headers

    def identity_now(self, keys: KeyRing) -> Identity:
        """Check the connection by the current keys. Raises Unauthorized, Forbidden."""
        assert self.credentials is not None, "it has come through the gate"
        return self.credentials.identity(keys)

    def inner(
        self, origin: ended.RequestOrigin, *, id: str | None = None, path: str | None = None
    ) -> RequestContext:
        request_log = self.request_log.inner(origin, id=id, path=path)
        request_log.client = self.request_log.client
        return RequestContext(request_log, self.caller, self.reservation, timeout_s=self.timeout_s)


def put_context(scope: Scope, context: RequestContext) -> None:
    scope[_CONTEXT] = context


def context_of(scope: Scope) -> RequestContext:
    context = scope[_CONTEXT]
    assert isinstance(context, RequestContext)
    return context


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """Return no headers for an unmetered or rejected request."""
    context = scope.get(_CONTEXT)
    return context.limit_headers if isinstance(context, RequestContext) else {}


@dataclass
class ServedRequest:
    reservations: AsyncExitStack
    error: Exception | None = None

    async def hold(self, context: RequestContext) -> None:
        """Apply the key's limits until the request ends. Raises RequestsLimited."""
        await self.reservations.enter_async_context(context.reservation)


@asynccontextmanager
async def served(
    request_log: RequestLog,
    end: Callable[[RequestLog], None],
    *,
    has_left: Callable[[], bool] = lambda: False,
) -> AsyncIterator[ServedRequest]:
    """Serve a request without its own response, such as a WebSocket message, and store a failure. `end` is
    called after the reservation."""
    reservations = AsyncExitStack()
    request = ServedRequest(reservations)
    try:
        async with reservations:
            yield request
        request_log.status = 200
    except Exception as error:
        request.error = error
        request_log.status = failure_of(error).status
        if has_left():
            request_log.log_ours(error)
        else:
            request_log.failed(error)
    finally:
        if has_left():
            request_log.client_gone()
        end(request_log)
