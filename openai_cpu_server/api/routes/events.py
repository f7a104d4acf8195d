"""`GET /v1/events`: what the scheduler does, live. It never ends by itself; a key that goes ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openai_cpu_server.api.access.access import INFERENCE
from openai_cpu_server.api.access.clients import Client
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.keys import Scope as AccessScope
from openai_cpu_server.api.errors import error_object
from openai_cpu_server.api.events.hub import Hub, Watcher
from openai_cpu_server.api.events.listener import INTERVAL_S, PERIODS_S, Listener
from openai_cpu_server.api.events.objects import EVENTS, Event, name_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.parts import Parts
from openai_cpu_server.errors import InvalidRequest, ServerError
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.routes import RouteRoom, RouteRow
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.recent import Recent

logger = logging.getLogger(__name__)

_KEY_S = 1.0
"""A key that was taken back, or got other rights, ends its streams within so long."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_KEEP_ALIVE = ServerSentEvent(comment="keep-alive", sep="\n")


class EventRoutes:
    def __init__(
        self,
        models: ModelRegistry,
        recent: Recent,
        keys: KeyRing,
        options: ApiOptions,
        *,
        has_usage: bool,
    ) -> None:
        self._has_usage = has_usage
        self._models = models
        self._recent = recent
        self._keys = keys
        self._options = options
        self._hub = Hub(models)

    async def stream(self, request: Request) -> Response:
        """`?types=step,restart`: only these. Raises InvalidRequest, TooManyWatchers."""
        kinds, identity = _kinds(request), context_of(request.scope).identity
        self._hub.check_room(_watcher(identity))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_HEADERS)
        return _Stream(self, kinds)

    async def tell(self, scope: Scope, receive: Receive, send: Send, kinds: frozenset[str]) -> None:
        identity = context_of(scope).identity
        with self._hub.listening(_watcher(identity)):
            listener = Listener(
                self._hub,
                self._models,
                self._recent,
                identity,
                kinds=kinds,
                scheduling=self._options.scheduling,
                has_usage=self._has_usage,
            )
            response = EventSourceResponse(
                self._messages(listener, scope),
                headers=_HEADERS,
                sep="\n",
                ping=self._options.keep_alive_s,
                ping_message_factory=lambda: _KEEP_ALIVE,
            )
            await response(scope, receive, send)

    async def _messages(self, listener: Listener, scope: Scope) -> AsyncIterator[bytes]:
        """One event at a time, each made when the one before it is on its way."""
        yield _encoded(listener.hello())
        context, checked_s = context_of(scope), time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL_S)
            if time.monotonic() - checked_s >= _KEY_S:
                checked_s = time.monotonic()
                try:
                    if context.identity_now(self._keys) != context.identity:
                        return  # its rights are others now: who connects again sees what they allow
                except ServerError as error:
                    said = error_object(error, request_id=context.ticket.id)
                    yield b"event: error\ndata: %b\n\n" % msgspec.json.encode(said)
                    return
            if (event := listener.next()) is not None:
                yield _encoded(event)


class _Stream(Response):
    """The stream as a response, which begins when it is sent."""

    def __init__(self, routes: EventRoutes, kinds: frozenset[str]) -> None:
        super().__init__()
        self._routes = routes
        self._kinds = kinds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._routes.tell(scope, receive, send, self._kinds)


def _kinds(request: Request) -> frozenset[str]:
    asked = request.query_params.get("types")
    if asked is None:
        return frozenset(PERIODS_S)
    kinds = frozenset(name.strip() for name in asked.split(",") if name.strip())
    if not kinds or not kinds <= PERIODS_S.keys():
        message = f"Invalid value for 'types': expected some of {', '.join(PERIODS_S)}, with commas."
        raise InvalidRequest(message, param="types", code="invalid_value")
    return kinds


def _watcher(identity: Identity) -> Watcher:
    return Watcher(Client.of(identity, None).label, identity.may(AccessScope.ADMIN))


def _encoded(event: Event) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name_of(event).encode(), msgspec.json.encode(event))


ROOM = RouteRoom[Parts, EventRoutes](
    lambda parts: EventRoutes(
        parts.models, parts.watch.recent, parts.keys, parts.options, has_usage=parts.jobs is not None
    ),
    (
        RouteRow(
            "GET",
            "/v1/events",
            lambda at: at.stream,
            access=INFERENCE,
            summary="What the scheduler does, live, as server-sent events",
            tag="Operation",
            query={
                "types": {
                    "type": "string",
                    "description": "only these, with commas between them: " + ", ".join(PERIODS_S),
                }
            },
            media="text/event-stream",
            events=EVENTS,
        ),
    ),
)
