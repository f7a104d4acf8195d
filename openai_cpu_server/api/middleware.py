"""Pure ASGI layers around the routes: the boundary outside of all, excess connections, large bodies."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.access.authentication import key_name
from openai_cpu_server.api.access.metering import limit_headers_of
from openai_cpu_server.api.access.scopes import OPEN_PATHS
from openai_cpu_server.api.bodies import BodyBudget, HeldBody, set_held_body
from openai_cpu_server.api.endings import Endings
from openai_cpu_server.api.errors import INTERNAL, error_response, failure_of
from openai_cpu_server.api.ticket import Ticket, open_ticket
from openai_cpu_server.errors import BodyTooLarge, JobsUnavailable, TooManyConnections

logger = logging.getLogger(__name__)

EXCESS_CONNECTION = "excess_connection"
"""In the state that the web server hands over with a request."""


_SOCKET_REFUSED = 403
"""What the web server makes of a WebSocket that is closed before it opened: there is nothing at its path."""
_SWITCHING_PROTOCOLS = 101


class Boundary:
    """Gives every request its id, every failure its response, and every request its one end."""

    def __init__(self, app: ASGIApp, *, endings: Endings) -> None:
        self._app = app
        self._endings = endings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        ticket = open_ticket(scope)

        async def tagged(message: Message) -> None:
            status = _begun(message)
            if ticket.status is None and status is not None:
                message.setdefault("headers", [])
                MutableHeaders(scope=message).update({**limit_headers_of(scope), "x-request-id": ticket.id})
                ticket.status = status
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            ticket.client_gone()
        except Exception as error:
            ticket.failed(error)
            _log_what_is_ours(error, ticket)
            if ticket.status is not None:
                _leave_incomplete(error, scope)
                return
            await error_response(error, request_id=ticket.id)(scope, receive, tagged)
        finally:
            ticket.client = key_name(scope)
            self._endings.end(ticket)


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
    """Too late for another response: the web server closes the connection, and the client sees it cut.

    Raises the error for a stack in the log, unless it is one with a name, such as a file that was deleted.
    """
    if failure_of(error) == INTERNAL or scope["type"] == "websocket":
        raise error


def _log_what_is_ours(error: Exception, ticket: Ticket) -> None:
    if isinstance(error, JobsUnavailable):
        logger.error("request %s: the jobs database failed: %s", ticket.id, error.reason)
    if failure_of(error) == INTERNAL:
        logger.error("request %s failed", ticket.id, exc_info=error)


class ConnectionLimit:
    """Refuses what comes on a connection that the web server has marked as one too many."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_refused = scope["type"] in ("http", "websocket") and scope["path"] not in OPEN_PATHS
        if is_refused and scope.get("state", {}).get(EXCESS_CONNECTION):
            raise TooManyConnections
        await self._app(scope, receive, send)


_SPOOLED_BYTES = 1024 * 1024
"""What Starlette's reader of forms keeps of a file in memory."""


class BodyLimit:
    """Refuses a body by what it says of its length, and by counting; and if all together are too large.

    `uploads`: paths with limits of their own, whose bodies go to disk beyond `_SPOOLED_BYTES`.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_bytes_of_all: int, uploads: Mapping[str, int]
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._budget = BodyBudget(max_bytes_of_all)
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._uploads.get(scope["path"], self._max_bytes)
        if _announced_bytes(scope) > max_bytes:
            raise BodyTooLarge(max_bytes)
        held = HeldBody(self._budget, _SPOOLED_BYTES if scope["path"] in self._uploads else max_bytes)
        set_held_body(scope, held)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise BodyTooLarge(max_bytes)
            held.has_grown(received)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            held.release()


def _announced_bytes(scope: Scope) -> int:
    """`content-length`; 0 where it is missing, or no number that a server would let pass."""
    announced = Headers(scope=scope).get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) < 20 else 0
