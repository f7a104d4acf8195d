"""Pure ASGI layers around the routes, the outermost first: boundary, authentication, size of the body."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.auth import is_authorized
from openai_cpu_server.api.errors import INTERNAL, error_response, failure_of
from openai_cpu_server.api.ticket import Ticket, open_ticket
from openai_cpu_server.errors import BodyTooLarge, Unauthorized

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Asked by machines all the time: no key, no line in the log."""


class Boundary:
    """Gives every request its id, every failure its response, and the log one line for each."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ticket = open_ticket(scope)

        async def tagged(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = ticket.id
                ticket.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except ClientDisconnect:
            ticket.client_gone()
        except Exception as error:
            ticket.failed(error)
            _log_internal(error, ticket)
            if ticket.status is not None:
                raise  # too late for a response: the server closes the connection
            await error_response(error, request_id=ticket.id)(scope, receive, tagged)
        finally:
            ticket.log(quiet=scope["path"] in OPEN_PATHS)


def _log_internal(error: Exception, ticket: Ticket) -> None:
    if failure_of(error) == INTERNAL:
        logger.error("request %s failed", ticket.id, exc_info=error)


class Authentication:
    def __init__(self, app: ASGIApp, *, api_key: str | None) -> None:
        self._app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._api_key is not None and scope["path"] not in OPEN_PATHS:
            given = Headers(scope=scope).get("authorization")
            if not is_authorized(given, self._api_key):
                raise Unauthorized("Missing or incorrect API key: send 'Authorization: Bearer KEY'.")
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body by what it says of its length, and by counting."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced_bytes(scope) > self._max_bytes:
            raise BodyTooLarge(self._max_bytes)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise BodyTooLarge(self._max_bytes)
            return message

        await self._app(scope, counted, send)


def _announced_bytes(scope: Scope) -> int:
    """`content-length`; 0 where it is missing, or no number that a server would let pass."""
    announced = Headers(scope=scope).get("content-length", "")
    return int(announced) if announced.isdecimal() and len(announced) < 20 else 0
