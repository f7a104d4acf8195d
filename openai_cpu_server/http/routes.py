"""The one table of routes. Its rows make the router, what each route asks of whoever comes, how large a body
may be, and the OpenAPI document.

Each family and each room of administration has its rows beside its handlers, in a `RouteRoom`;
`api/application.py` lists these.
"""

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
from openai_cpu_server.http.gate import RouteGuard
from openai_cpu_server.http.keys import INFERENCE, Access, unmetered
from openai_cpu_server.http.parse import Body

JsonSchema = dict[str, object]
Handler = Union[Callable[[Request], Awaitable[ASGIApp]], Callable[[WebSocket], Awaitable[None]]]
BatchHandler = Callable[[bytes, RequestContext], Awaitable[bytes]]
"""Answers a row of a batch job, whole."""
P = TypeVar("P")
R = TypeVar("R")

WEBSOCKET = "WEBSOCKET"
"""Stands for the method of a route that is a WebSocket."""
GENERATION_ERRORS = (404, 408, 429, CLIENT_GONE, 500, 503)
"""The statuses that a call to a model may end with, beside those that any request may."""
_CHUNKS = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; at the end `data: [DONE]`."


@dataclass(frozen=True)
class RouteRow(Generic[R]):
    """A route, and all that is known of it. `R` is the object whose method its handler is."""

    method: str
    path: str
    """As Starlette has it: `/v1/models/{id:path}`."""
    handler: Callable[[R], Handler]
    access: Access
    """What it asks of whoever comes: scope, metering, whether it is quiet, how large its body may be."""
    tag: str
    """Under which documents have it."""
    summary: str
    _: KW_ONLY
    body: type[Body] | None = None
    body_media: str = "application/json"
    """`multipart/form-data`: its fields come in a form."""
    form: JsonSchema | None = None
    """The schema of a multipart body, in place of a JSON one."""
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    answer: type[msgspec.Struct] | None = None
    also: tuple[type[msgspec.Struct], ...] = ()
    """What it is otherwise, where that depends on the request."""
    lists: tuple[bool, ...] = (False,)
    """Whether it is a list of these; where that depends on the request, both."""
    or_list_of: type[msgspec.Struct] | None = None
    """Another answer, where that depends on the request: a list of these."""
    media: str = "application/json"
    """The media type of an answer that has no model."""
    status: int = 200
    streams: bool = False
    stream_form: str = _CHUNKS
    """What a stream is made of."""
    stream_media: str = "text/event-stream"
    events: tuple[type[msgspec.Struct], ...] = ()
    """What the events of a stream hold, where the answer is one in any case."""
    error: type[msgspec.Struct] = ErrorObject
    errors: tuple[int, ...] = ()
    """Statuses beside those that follow from the body, the key and the path."""
    batched: Callable[[R], BatchHandler] | None = None
    """What answers the rows of batches that ask for this path; None: they may not."""

    @property
    def shown_path(self) -> str:
        """As documents and metrics show it."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def name(self) -> str:
        """`POST /v1/completions`."""
        return f"{self.method} {self.shown_path}"

    def at(self, path: str) -> RouteRow[R]:
        """The same under another path."""
        return replace(self, path=path)


@dataclass(frozen=True)
class RouteRoom(Generic[P, R]):
    """Routes that one object serves, which is made of a server's parts."""

    make: Callable[[P], R | None]
    """None: this server has no such routes."""
    rows: tuple[RouteRow[R], ...]
    _: KW_ONLY
    is_hidden: Callable[[P], bool] = lambda _: False
    """They are served, and no document has them."""
    shape: ErrorShape | None = None
    """How failures look on their paths, and on those below; None: as OpenAI's."""


@dataclass(frozen=True)
class ServedRoute:
    """A row, and the object of this server whose method its handler is."""

    row: RouteRow[Any]
    of: Any
    is_hidden: bool = False
    """No document has it."""
    shape: ErrorShape | None = None
    """That of its API's failures; None: OpenAI's."""

    def guarded(self, guard: RouteGuard) -> BaseRoute:
        handler = self.row.handler(self.of)
        if self.row.method == WEBSOCKET:
            return GuardedSocket(self.row, handler, guard)
        return GuardedRoute(self.row, handler, guard)

    @property
    def batch_handler(self) -> BatchHandler | None:
        return None if self.row.batched is None else self.row.batched(self.of)


def served_routes(rooms: Iterable[RouteRoom[P, Any]], parts: P) -> Iterator[ServedRoute]:
    """The routes that a server of these parts has."""
    for room in rooms:
        made = room.make(parts)
        if made is not None:
            is_hidden = room.is_hidden(parts)
            yield from (ServedRoute(row, made, is_hidden=is_hidden, shape=room.shape) for row in room.rows)


class GuardedRoute(Route):
    """It runs its guard when the router has matched it, so that what is checked is what will be served."""

    def __init__(self, row: RouteRow[Any], handler: Handler, guard: RouteGuard) -> None:
        super().__init__(row.path, handler, methods=[row.method])
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A method that is not there needs the same key, and counts against none of its limits."""
        ticket_of(scope).route = self._row.shown_path
        is_there = scope["method"] in (self.methods or ())
        access = self._row.access if is_there else unmetered(self._row.access)
        await self._guard.admit(access, super().handle, scope, receive, send)


class GuardedSocket(WebSocketRoute):
    def __init__(self, row: RouteRow[Any], handler: Handler, guard: RouteGuard) -> None:
        super().__init__(row.path, handler)
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket_of(scope).route = self._row.shown_path
        await self._guard.admit(self._row.access, super().handle, scope, receive, send)


def guarded_nowhere(not_found: ASGIApp, guard: RouteGuard) -> ASGIApp:
    """What answers where there is no route: whoever may ask nothing is not told what there is."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await guard.admit(INFERENCE, not_found, scope, receive, send)

    return handle
