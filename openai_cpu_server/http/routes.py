"""Table of routes, from which the router, access checks, body limits and the OpenAPI document are made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import msgspec

from openai_cpu_server.http.context import RequestContext
from openai_cpu_server.http.errors import CLIENT_GONE, ErrorObject, ErrorShape
from openai_cpu_server.http.keys import CALLS, Access
from openai_cpu_server.http.parse import Body

JsonSchema = dict[str, object]
BatchHandler = Callable[[bytes, RequestContext], Awaitable[bytes]]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
P = TypeVar("P")

WEBSOCKET = "WEBSOCKET"
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
    """Further paths, unknown to batches."""
    body: type[Body] | None = None
    body_media: str = "application/json"
    form: JsonSchema | None = None
    query: Mapping[str, JsonSchema] = field(default_factory=dict)
    answer: Any = None
    """Struct, or a list of them. A tuple if it depends on the request."""
    media: str = "application/json"
    status: int = 200
    streams: bool = False
    stream_form: str = _CHUNKS
    stream_media: str = "text/event-stream"
    events: tuple[type[msgspec.Struct], ...] = ()
    error: type[msgspec.Struct] = ErrorObject
    errors: tuple[int, ...] = ()
    """Statuses that do not follow from the body, the key or the path."""
    batched: Callable[[Any], BatchHandler] | None = None
    """Answers batch rows, or None if they are not allowed."""
    handler: Callable[..., Awaitable[Any]] | None = None
    """Set by the decorator."""

    def __call__(self, handler: Handler) -> Handler:
        handler.__dict__[_ROUTES] = [
            replace(self, handler=handler, aliases=()),
            *(replace(self, handler=handler, aliases=(), path=path, batched=None) for path in self.aliases),
        ]
        return handler

    @property
    def answers(self) -> tuple[Any, ...]:
        if isinstance(self.answer, tuple):
            return self.answer
        return () if self.answer is None else (self.answer,)

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


model_route = partial(
    ApiRoute, "POST", access=CALLS, streams=True, errors=(404, 408, 429, CLIENT_GONE, 500, 503)
)


def routes_of(router: Callable[..., Any]) -> tuple[ApiRoute, ...]:
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
