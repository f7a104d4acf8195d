"""The outer gates: the name that the server is called by, and for every request its id and its one end."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.error_shapes import id_headers, shaped_response
from openai_cpu_server.api.errors import is_ours
from openai_cpu_server.api.gates.browsers import is_own_host
from openai_cpu_server.api.gates.ticket import Endings, open_ticket
from openai_cpu_server.errors import HostRefused, InvalidRequest, JobsUnavailable
from openai_cpu_server.http.context import limit_headers_of

logger = logging.getLogger(__name__)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SOCKET_REFUSED = 403
"""The status that the web server makes of a WebSocket closed before it opened: nothing is at its path."""
_SWITCHING_PROTOCOLS = 101


class Entrance:
    """Failures become responses. What names no route is refused here, the rest by the guard of its route."""

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
                said = {**limit_headers_of(scope), **id_headers(ticket.path, ticket.id)}
                MutableHeaders(scope=message).update(said)
                ticket.status = status
            await send(message)

        try:
            _check_path(scope["path"])
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            ticket.client_gone()
        except Exception as error:
            ticket.failed(error)
            if isinstance(error, JobsUnavailable):
                logger.error("request %s: the jobs database failed: %s", ticket.id, error.reason)
            if ticket.status is not None:
                _leave_incomplete(error, scope)
                return
            response = shaped_response(error, request_id=ticket.id, path=ticket.path)
            await response(scope, receive, tagged)
        finally:
            self._endings.end(ticket)


class HostGate:
    """Stands around all, preflights of browsers included: whoever calls by another's name is refused."""

    def __init__(self, app: ASGIApp, *, endings: Endings, hosts: Collection[str] | None) -> None:
        """`hosts`: names that the server goes by, beside its addresses; None: any."""
        self._app = app
        self._hosts = hosts
        self._refusing = Entrance(self._refuse, endings=endings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if is_request and self._hosts is not None and not is_own_host(scope, self._hosts):
            await self._refusing(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises HostRefused."""
        raise HostRefused(", ".join(Headers(scope=scope).getlist("host")))


def _check_path(path: str) -> None:
    """Raises InvalidRequest for control characters: patterns and logs may take them for an end."""
    if _CONTROL.search(path):
        message = "The path has control characters."
        raise InvalidRequest(message, code="invalid_path")


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
    if is_ours(error) or scope["type"] == "websocket":
        raise error
