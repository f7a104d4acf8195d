"""The table of routes, from which the router, access checks, body limits and the OpenAPI document are
made. Each route is a decorator on its handler; `api/application.py` lists the routers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from types import MethodType
from typing import Any, Generic, TypeVar

import msgspec
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.http.context import RequestContext, request_log_of
from openai_cpu_server.http.errors import CLIENT_GONE, ErrorObject, ErrorShape
from openai_cpu_server.http.gate import AuthMiddleware
from openai_cpu_server.http.keys import INFERENCE, Access, unmetered
from openai_cpu_server.http.parse import Body

JsonSchema = dict[str, object]
BatchHandler = Callable[[bytes, RequestContext], Awaitable[bytes]]
"""Answers a row of a batch job with a complete body."""
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
P = TypeVar("P")

WEBSOCKET = "WEBSOCKET"
GENERATION_ERRORS = (404, 408, 429, CLIENT_GONE, 500, 503)
"""Statuses of calls to a model, beside those of any request."""
_CHUNKS = "With `stream`: `data: ` and a chunk as JSON, an empty line, and so on; at the end `data: [DONE]`."
_ROUTES = "api_routes"


@dataclass(frozen=True)
class ApiRoute:
    """Decorator of a handler, whose docstring's first paragraph is the summary."""

    method: str
    path: str
    access: Access
    tag: str
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    """Further paths. Batches know only the first."""
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
    batched: Callable[[Any], BatchHandler] | None = None
    """Answers batch rows with this path, or None if they are not allowed."""
    handler: Callable[..., Awaitable[Any]] | None = None
    """Method of the router's class. Set by the decorator."""

    def __call__(self, handler: Handler) -> Handler:
        handler.__dict__[_ROUTES] = [
            replace(self, handler=handler, aliases=()),
            *(replace(self, handler=handler, aliases=(), path=path, batched=None) for path in self.aliases),
        ]
        return handler

    @property
    def summary(self) -> str:
        first, _, _ = (inspect.getdoc(self.handler) or "").partition("\n\n")
        return " ".join(first.split())

    @property
    def shown_path(self) -> str:
        return re.sub(r":\w+}", "}", self.path)

    @property
    def name(self) -> str:
        return f"{self.method} {self.shown_path}"


def routes_of(router: Callable[..., Any]) -> tuple[ApiRoute, ...]:
    """Return the routes that decorate methods of this class."""
    return tuple(route for method in vars(router).values() for route in getattr(method, _ROUTES, ()))


@dataclass(frozen=True)
class ApiRouter(Generic[P]):
    make: Callable[[P], Any]
    """Class with the handlers, in the order of the table."""
    _: KW_ONLY
    is_served: Callable[[P], bool] = lambda _: True
    is_hidden: Callable[[P], bool] = lambda _: False
    shape: ErrorShape | None = None
    """Form of failures on their paths and below, or None for OpenAI's."""

    @cached_property
    def rows(self) -> tuple[ApiRoute, ...]:
        return routes_of(self.make)


@dataclass(frozen=True)
class ServedRoute:
    row: ApiRoute
    of: Any
    is_hidden: bool = False
    shape: ErrorShape | None = None

    def guarded(self, guard: AuthMiddleware) -> BaseRoute:
        assert self.row.handler is not None, "a route decorates its handler"
        handler = MethodType(self.row.handler, self.of)
        if self.row.method == WEBSOCKET:
            return GuardedSocket(self.row, handler, guard)
        return GuardedRoute(self.row, handler, guard)

    @property
    def batch_handler(self) -> BatchHandler | None:
        return None if self.row.batched is None else self.row.batched(self.of)


def served_routes(routers: Iterable[ApiRouter[P]], state: P) -> Iterator[ServedRoute]:
    for router in routers:
        if router.is_served(state):
            made, is_hidden = router.make(state), router.is_hidden(state)
            yield from (
                ServedRoute(row, made, is_hidden=is_hidden, shape=router.shape) for row in router.rows
            )


class GuardedRoute(Route):
    """Runs its guard after the router's match, so that the checked route is the served one."""

    def __init__(self, row: ApiRoute, handler: Callable[..., Any], guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler, methods=[row.method])
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard unsupported methods with the same key, but do not meter them."""
        request_log_of(scope).route = self._row.shown_path
        is_there = scope["method"] in (self.methods or ())
        access = self._row.access if is_there else unmetered(self._row.access)
        await self._guard.admit(access, super().handle, scope, receive, send)


class GuardedSocket(WebSocketRoute):
    def __init__(self, row: ApiRoute, handler: Callable[..., Any], guard: AuthMiddleware) -> None:
        super().__init__(row.path, handler)
        self._row = row
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_log_of(scope).route = self._row.shown_path
        await self._guard.admit(self._row.access, super().handle, scope, receive, send)


def guarded_nowhere(not_found: ASGIApp, guard: AuthMiddleware) -> ASGIApp:
    """Require a key for unknown paths too, so that strangers cannot discover routes."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await guard.admit(INFERENCE, not_found, scope, receive, send)

    return handle
