"""The table of routes, from which the router, access checks, body limits and the OpenAPI document are
made. `api/application.py` lists its rows, each beside its handler."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Generic, TypeVar, Union

import msgspec
from starlette.requests import Request
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from openai_cpu_server.http.context import RequestContext, ticket_of
from openai_cpu_server.http.errors import CLIENT_GONE, ErrorObject, ErrorShape
from openai_cpu_server.http.gate import AuthMiddleware
from openai_cpu_server.http.keys import INFERENCE, Access, unmetered
from openai_cpu_server.http.parse import Body

JsonSchema = dict[str, object]
Handler = Union[Callable[[Request], Awaitable[ASGIApp]], Callable[[WebSocket], Awaitable[None]]]
BatchHandler = Callable[[bytes, RequestContext], Awaitable[bytes]]
"""Answers a row of a batch job with a complete body."""
P = TypeVar("P")
R = TypeVar("R")

WEBSOCKET = "WEBSOCKET"
GENERATION_ERRORS = (404, 408, 429, CLIENT_GONE, 500, 503)
"""Statuses of calls to a model, beside those of any request."""
_CHUNKS = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; at the end `data: [DONE]`."


@dataclass(frozen=True)
class ApiRoute(Generic[R]):
    method: str
    path: str
    handler: Callable[[R], Handler]
    access: Access
    tag: str
    summary: str
    _: KW_ONLY
    body: type[Body] | None = None
    body_media: str = "application/json"
    form: JsonSchema | None = None
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    answer: type[msgspec.Struct] | None = None
    also: tuple[type[msgspec.Struct], ...] = ()
    lists: tuple[bool, ...] = (False,)
    """True for a list of answers; both if it depends on the request."""
    or_list_of: type[msgspec.Struct] | None = None
    """Element of a list that is another possible answer."""
    media: str = "application/json"
    status: int = 200
    streams: bool = False
    stream_form: str = _CHUNKS
    stream_media: str = "text/event-stream"
    events: tuple[type[msgspec.Struct], ...] = ()
    error: type[msgspec.Struct] = ErrorObject
    errors: tuple[int, ...] = ()
    """Statuses beside those that follow from the body, the key and the path."""
    batched: Callable[[R], BatchHandler] | None = None
    """Answers batch rows with this path, or None if they are not allowed."""

    @property
    def shown_path(self) -> str:
        return re.sub(r":\w+}", "}", self.path)

    @property
    def name(self) -> str:
        return f"{self.method} {self.shown_path}"

    def at(self, path: str) -> ApiRoute[R]:
        return replace(self, path=path)


@dataclass(frozen=True)
class ApiRouter(Generic[P, R]):
    make: Callable[[P], R | None]
    """Returns None if the server lacks these routes."""
    rows: tuple[ApiRoute[R], ...]
    _: KW_ONLY
    is_hidden: Callable[[P], bool] = lambda _: False
    shape: ErrorShape | None = None
    """Form of failures on their paths and below, or None for OpenAI's."""


@dataclass(frozen=True)
class ServedRoute:
    row: ApiRoute[Any]
    of: Any
    is_hidden: bool = False
    shape: ErrorShape | None = None

    def guarded(self, guard: AuthMiddleware) -> BaseRoute:
        handler = self.row.handler(self.of)
        if self.row.method == WEBSOCKET:
            return GuardedSocket(self.row, handler, guard)
        return GuardedRoute(self.row, handler, guard)

    @property
    def batch_handler(self) -> BatchHandler | None:
        return None if self.row.batched is None else self.row.batched(self.of)


def served_routes(rooms: Iterable[ApiRouter[P, Any]], parts: P) -> Iterator[ServedRoute]:
    for room in rooms:
        made = room.make(parts)
        if made is not None:
            is_hidden = room.is_hidden(parts)
            yield from (ServedRoute(row, made, is_hidden=is_hidden, shape=room.shape) for row in room.rows)


class GuardedRoute(Route):
    """Runs its guard after the router's match, so that the checked route is the served one."""

    def __init__(self, row: ApiRoute[Any], handler: Handler, guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler, methods=[row.method])
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard unsupported methods with the same key, but do not meter them."""
        ticket_of(scope).route = self._row.shown_path
        is_there = scope["method"] in (self.methods or ())
        access = self._row.access if is_there else unmetered(self._row.access)
        await self._guard.admit(access, super().handle, scope, receive, send)


class GuardedSocket(WebSocketRoute):
    def __init__(self, row: ApiRoute[Any], handler: Handler, guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler)
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket_of(scope).route = self._row.shown_path
        await self._guard.admit(self._row.access, super().handle, scope, receive, send)


def guarded_nowhere(not_found: ASGIApp, guard: AuthMiddleware) -> ASGIApp:
    """Require a key for unknown paths too, so that strangers cannot discover routes."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await guard.admit(INFERENCE, not_found, scope, receive, send)

    return handle
