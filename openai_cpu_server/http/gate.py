"""Checks before any handler. A page can point its own name at this machine (DNS rebinding), which only the
`Host` reveals."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from ipaddress import ip_address
from types import MethodType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server import errors
from openai_cpu_server.http.body import BodyBudget, BodyQuota, check_announced, inflated, paced
from openai_cpu_server.http.context import (
    Caller,
    RequestContext,
    RequestHistory,
    RequestLog,
    limit_headers_of,
    open_request_log,
    put_context,
    request_log_of,
)
from openai_cpu_server.http.errors import OPENAI, ErrorShape, is_internal
from openai_cpu_server.http.keys import (
    INFERENCE,
    Access,
    Callers,
    Credentials,
    KeyRing,
    Metering,
    is_local,
    unmetered,
    works_for,
)
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute, ServedRoute
from openai_cpu_server.http.server import EXCESS_CONNECTION

_ANY = "*"
_HOST = re.compile(r"(?P<name>\[[0-9A-Za-z:.%]+\]|[0-9A-Za-z._-]+)(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_BEFORE_HOST = {"0.9", "1.0"}
_SECURE = {"https", "wss"}
_READING = {"GET", "HEAD", "OPTIONS"}
"""Methods that change nothing, whose responses other origins' pages cannot read."""


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None
    """Absent (None) as for `app://name`."""

    @classmethod
    def of(cls, text: str) -> Origin | None:
        """Return None for other text, such as `null`, which many pages share."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            return None
        if not parts.scheme or not parts.hostname or parts.path not in ("", "/"):
            return None
        if parts.username is not None or parts.query or parts.fragment:
            return None
        return cls(parts.scheme, parts.hostname.rstrip("."), port or _DEFAULT_PORTS.get(parts.scheme))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_usual = self.port is None or self.port == _DEFAULT_PORTS.get(self.scheme)
        return f"{self.scheme}://{host}" if is_usual else f"{self.scheme}://{host}:{self.port}"


def canonical_origin(text: str) -> str:
    origin = Origin.of(text)
    return text if origin is None else str(origin)


def host_name(host: str) -> str | None:
    """Return a `Host` header's name, or None if malformed."""
    match = _HOST.fullmatch(host)
    return match["name"].lower().rstrip(".") if match else None


def is_own_host(scope: Scope, allowed: Collection[str]) -> bool:
    """Allow addresses, which are never a page's. No browser omits `Host`."""
    if _ANY in allowed:
        return True
    hosts = Headers(scope=scope).getlist("host")
    if not hosts:
        return scope.get("http_version") in _BEFORE_HOST
    name = host_name(hosts[0]) if len(hosts) == 1 else None
    if name is None or name in allowed:
        return name is not None
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def check_origin(scope: Scope, allowed: Collection[str]) -> None:
    """Reject pages of other origins, which need no preflight for a WebSocket. Raises OriginRefused."""
    headers = Headers(scope=scope)
    text = headers.get("origin")
    if text is None or (scope["type"] == "http" and scope["method"] in _READING):
        return
    if canonical_origin(text) in allowed or _ANY in allowed:
        return
    origin = Origin.of(text)
    if origin is None or origin != _own_origin(scope, headers):
        raise errors.OriginRefused(text)


def _own_origin(scope: Scope, headers: Headers) -> Origin | None:
    """Believe a proxy's header for HTTPS, which pages cannot set."""
    scheme = headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() or scope["scheme"]
    host = headers.get("host", "")
    if host_name(host) is None:
        return None
    return Origin.of(f"{'https' if scheme in _SECURE else 'http'}://{host}")


logger = logging.getLogger(__name__)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SOCKET_STATUSES = {"websocket.accept": 101, "websocket.close": 403}
"""Handshakes, the second refused for lack of a route."""


def shape_at(path: str, shapes: Iterable[ErrorShape]) -> ErrorShape:
    places = ((f"{prefix}/", shape) for shape in shapes for prefix in shape.prefixes)
    return next((shape for place, shape in places if f"{path}/".startswith(place)), OPENAI)


class ErrorMiddleware:
    """Opens and ends log entries, and answers failures."""

    def __init__(self, app: ASGIApp, *, history: RequestHistory, shapes: Sequence[ErrorShape] = ()) -> None:
        self._app = app
        self._history = history
        self._shapes = shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_log = open_request_log(scope)
        shape = shape_at(request_log.path, self._shapes)

        async def tagged(message: Message) -> None:
            status = _SOCKET_STATUSES.get(message["type"], message.get("status"))
            if request_log.status is None and status is not None:
                message.setdefault("headers", [])
                headers = {**limit_headers_of(scope), **dict.fromkeys(shape.id_headers, request_log.id)}
                MutableHeaders(scope=message).update(headers)
                request_log.status = status
            await send(message)

        try:
            if _CONTROL.search(scope["path"]):  # patterns and logs may take it for an end
                raise errors.InvalidRequest("The path contains control characters.", code="invalid_path")
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            request_log.client_gone()
        except Exception as error:
            request_log.failed(error)
            if isinstance(error, errors.JobsUnavailable):
                logger.error("request %s: the jobs database failed: %s", request_log.id, error.reason)
            if request_log.status is not None:
                if is_internal(error) or scope["type"] == "websocket":
                    raise  # for a traceback in the log
                return  # the web server cuts the connection
            response = shape.response(error, request_log.id)
            await response(scope, receive, tagged)
        finally:
            self._history.end(request_log)


class HostGate:
    """Outermost layer, which rejects foreign host names, also of preflights."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        history: RequestHistory,
        hosts: Collection[str] | None,
        shapes: Sequence[ErrorShape],
    ) -> None:
        """`hosts`: accepted beside addresses, or None for any."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            raise errors.HostRefused(", ".join(Headers(scope=scope).getlist("host")))

        self._app = app
        self._hosts = hosts
        self._refusing = ErrorMiddleware(refuse, history=history, shapes=shapes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if is_request and self._hosts is not None and not is_own_host(scope, self._hosts):
            await self._refusing(scope, receive, send)
        else:
            await self._app(scope, receive, send)


_SPOOLED_BYTES = 1024 * 1024
"""Part of a file that Starlette's form parser keeps in memory."""


class AuthMiddleware:
    def __init__(self, *, keys: KeyRing, limits: RateLimits, bodies: BodyBudget, options: ApiOptions) -> None:
        self._keys = keys
        self._limits = limits
        self._bodies = bodies
        self._options = options
        self._origins = frozenset(map(canonical_origin, options.cors_origins))
        self._hosts = options.hosts or {"localhost"}

    async def admit(
        self, access: Access, handle: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve an admitted request. Raises TooManyConnections, OriginRefused, Unauthorized, Forbidden,
        RequestsLimited, and errors of the body."""
        request_log = request_log_of(scope)
        request_log.is_quiet = access.is_quiet
        if access.callers is not Callers.PROBES and scope.get("state", {}).get(EXCESS_CONNECTION):
            raise errors.TooManyConnections
        check_origin(scope, self._origins)
        context = self._context(access, scope, request_log)
        put_context(scope, context)
        works_for(context.identity)
        if scope["type"] != "http":  # the messages of a WebSocket are held to the same where they are read
            await handle(scope, receive, send)
            return
        if access.metering is Metering.CALLS and scope["method"] == "POST":
            request_log.priority = context.caller.announced_priority()
        max_bytes = self._max_bytes(access)
        await check_announced(scope, receive, max_bytes)
        body = inflated(scope, paced(receive, self._options.read_timeout_s))
        async with context.reservation:
            try:
                await handle(scope, self._counted(body, context.body, max_bytes), send)
            finally:
                context.body.release()

    def _context(self, access: Access, scope: Scope, request_log: RequestLog) -> RequestContext:
        # A browser on this machine may show a page whose name points here, so the name is checked too.
        is_called_locally = is_local(scope) and is_own_host(scope, self._hosts)
        is_administrator = self._options.is_admin_open or is_called_locally
        proxies = self._options.trusted_proxies
        credentials = Credentials.of(scope, access, self._keys, proxies, is_administrator=is_administrator)
        identity = credentials.identity(self._keys)
        request_log.client = identity.holder
        most_bytes = _SPOOLED_BYTES if access.is_upload else self._max_bytes(access)
        key = None if access.metering is Metering.NONE else identity.key
        takes_place = access.metering in (Metering.WORK, Metering.CALLS)
        return RequestContext(
            request_log,
            Caller.of(identity, Headers(scope=scope), self._options.default_priority),
            self._limits.reservation(key, takes_place=takes_place),
            credentials=credentials,
            body=BodyQuota(self._bodies, most_bytes),
            timeout_s=self._options.request_timeout_s,
            lenient=self._options.lenient,
        )

    def _max_bytes(self, access: Access) -> int:
        return self._options.max_upload_bytes if access.is_upload else self._options.max_body_bytes

    def _counted(self, receive: Receive, quota: BodyQuota, max_bytes: int) -> Receive:
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if piece := message.get("body", b""):  # else memory that was released early is charged again
                received += len(piece)
                if received > max_bytes:
                    raise errors.BodyTooLarge(max_bytes)
                quota.has_grown(received)
            return message

        return counted


def guarded(route: ServedRoute, guard: AuthMiddleware) -> BaseRoute:
    assert route.row.handler is not None, "a route decorates its handler"
    handler = MethodType(route.row.handler, route.of)
    if route.row.method == WEBSOCKET:
        return GuardedSocket(route.row, handler, guard)
    return GuardedRoute(route.row, handler, guard)


class GuardedRoute(Route):
    """Runs its guard after the router's match, so that the checked route is the served one."""

    def __init__(self, row: ApiRoute, handler: Callable[..., Any], guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler, methods=[row.method])
        self._access, self._path = row.access, row.shown_path
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard unsupported methods with the same key, unmetered."""
        request_log_of(scope).route = self._path
        is_there = scope["method"] in (self.methods or ())
        access = self._access if is_there else unmetered(self._access)
        await self._guard.admit(access, super().handle, scope, receive, send)


class GuardedSocket(WebSocketRoute):
    def __init__(self, row: ApiRoute, handler: Callable[..., Any], guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler)
        self._access, self._path = row.access, row.shown_path
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_log_of(scope).route = self._path
        await self._guard.admit(self._access, super().handle, scope, receive, send)


def guarded_nowhere(not_found: ASGIApp, guard: AuthMiddleware) -> ASGIApp:
    """Require a key for unknown paths too, so that strangers cannot discover routes."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await guard.admit(INFERENCE, not_found, scope, receive, send)

    return handle
