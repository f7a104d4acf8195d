"""The outer gate: it gives every request its id and its one end, and decides who comes in."""

from __future__ import annotations

import logging
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.access.clients import Network
from openai_cpu_server.api.access.identity import check_scope, identify
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import OPEN_PATHS
from openai_cpu_server.api.error_shapes import id_headers, shaped_response
from openai_cpu_server.api.errors import INTERNAL, failure_of
from openai_cpu_server.api.gates.fair_use import limit_headers_of
from openai_cpu_server.api.gates.ticket import Endings, Ticket, open_ticket
from openai_cpu_server.errors import JobsUnavailable, OriginRefused, TooManyConnections

logger = logging.getLogger(__name__)

EXCESS_CONNECTION = "excess_connection"
"""The web server sets this in the state of a request whose connection is one too many."""
_SOCKET_REFUSED = 403
"""The status that the web server makes of a WebSocket closed before it opened: nothing is at its path."""
_SWITCHING_PROTOCOLS = 101


class Entrance:
    """What may not come in never reaches what lies behind. Failures become responses."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        endings: Endings,
        keys: KeyRing,
        trusted_proxies: Collection[Network],
        origins: Collection[str],
    ) -> None:
        """`origins`: other servers' pages that may call; `*` is all."""
        self._app = app
        self._endings = endings
        self._keys = keys
        self._trusted_proxies = trusted_proxies
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        ticket = open_ticket(scope)

        async def tagged(message: Message) -> None:
            status = _begun(message)
            if ticket.status is None and status is not None:
                message.setdefault("headers", [])
                said = {**limit_headers_of(scope), **id_headers(ticket.path, ticket.id)}
                MutableHeaders(scope=message).update(said)
                ticket.status = status
            await send(message)

        try:
            self._admit(scope, ticket)
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            ticket.client_gone()
        except Exception as error:
            ticket.failed(error)
            _log_what_is_ours(error, ticket)
            if ticket.status is not None:
                _leave_incomplete(error, scope)
                return
            response = shaped_response(error, request_id=ticket.id, path=ticket.path)
            await response(scope, receive, tagged)
        finally:
            self._endings.end(ticket)

    def _admit(self, scope: Scope, ticket: Ticket) -> None:
        """Raises TooManyConnections, OriginRefused, Unauthorized, Forbidden."""
        path = scope["path"]
        if path not in OPEN_PATHS and scope.get("state", {}).get(EXCESS_CONNECTION):
            raise TooManyConnections
        if scope["type"] == "websocket" or scope["method"] == "POST":
            _check_origin(Headers(scope=scope), self._origins)
        identity = identify(scope, self._keys, self._trusted_proxies)
        ticket.client = identity.holder
        check_scope(identity, path, self._keys)


def _check_origin(headers: Headers, allowed: Collection[str]) -> None:
    """Raises OriginRefused for a page that is neither this server's nor of an allowed origin.

    A browser sends some POSTs of any page without asking, and opens any WebSocket; all else that changes
    something needs a preflight.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc != headers.get("host"):
        raise OriginRefused(origin)


def _begun(message: Message) -> int | None:
    """The status of a response or of a WebSocket's handshake that begins with this message."""
    match message["type"]:
        case "http.response.start" | "websocket.http.response.start":
            status: int = message["status"]
            return status
        case "websocket.accept":
            return _SWITCHING_PROTOCOLS
        case "websocket.close":
            return _SOCKET_REFUSED
    return None


def _leave_incomplete(error: Exception, scope: Scope) -> None:
    """It is too late for another response: the web server closes the connection, and the client sees it cut.

    Raises the error for a stack in the log, unless it is one with a name, such as a file that was deleted.
    """
    if failure_of(error) == INTERNAL or scope["type"] == "websocket":
        raise error


def _log_what_is_ours(error: Exception, ticket: Ticket) -> None:
    if isinstance(error, JobsUnavailable):
        logger.error("request %s: the jobs database failed: %s", ticket.id, error.reason)
    if failure_of(error) == INTERNAL:
        logger.error("request %s failed", ticket.id, exc_info=error)
