"""A call's answer as server-sent events, or whole, for as long as its client is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from openai_cpu_server.api.asking.renderer import Chunk, Renderer
from openai_cpu_server.api.asking.running import RunningCall, Said
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace
from openai_cpu_server.http.context import Ticket, ticket_of
from openai_cpu_server.http.errors import ErrorObject, error_object

T = TypeVar("T")


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """Returns the work's result or raises its exception.

    If the client leaves, it cancels the work and raises ClientDisconnect. The body must have been read.
    """
    results: list[T] = []
    failures: list[Exception] = []  # carried out by hand: a task group would wrap them

    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
        try:
            results.append(await work())
        except Exception as error:
            failures.append(error)
        group.cancel_scope.cancel()
    for failure in failures:
        raise failure
    for result in results:
        return result
    raise ClientDisconnect


async def _cancel_on_disconnect(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


_FAREWELL_S = 1.0
"""When the server ends, a stream may still say that it does."""
_KEEP_ALIVE = ServerSentEvent(comment="keep-alive", sep="\n")


class _Encoded(ServerSentEvent):
    """Events that are bytes already, where the library wants one of its own."""

    def __init__(self, encoded: bytes) -> None:
        super().__init__()
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


class EventStream:
    """The response of a call with `stream`. It owns the call: when it ends, however, that ends too."""

    def __init__(
        self,
        running: RunningCall,
        renderer: Renderer,
        *,
        keep_alive_s: float,
        told: AsyncIterator[Said] | None = None,
    ) -> None:
        """`told`: what the client hears; None: what the call tells this renderer, as it comes."""
        self._running = running
        self._told = running.tell(renderer) if told is None else told
        self._renderer = renderer
        self._keep_alive_s = keep_alive_s
        self._is_told = False
        """All that the client is to get has been made, be it an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket = ticket_of(scope)
        try:
            async with self._running:
                await self._response(ticket)(scope, receive, send)
        finally:
            if not self._is_told:
                ticket.client_gone()

    def _response(self, ticket: Ticket) -> EventSourceResponse:
        return EventSourceResponse(
            self._messages(ticket),
            headers={"cache-control": "no-cache", **self._running.call.headers},
            sep="\n",
            ping=self._keep_alive_s,
            ping_message_factory=self._keep_alive,
            shutdown_grace_period=_FAREWELL_S,
        )

    async def _messages(self, ticket: Ticket) -> AsyncIterator[bytes]:
        try:
            async for said in self._told:
                yield self._news(said) if isinstance(said, (QueuePlace, ModelLoading)) else events(said)
            self._is_told = True
            if (last_words := self._renderer.last_words) is not None:
                yield b"data: " + last_words + b"\n\n"
        except Exception as error:
            self._is_told = True
            yield events(self._renderer.error(_told(error, ticket)))

    def _news(self, news: QueuePlace | ModelLoading) -> bytes:
        chunks = self._renderer.waits(news)
        return events(chunks) if chunks else comment(news)

    def _keep_alive(self) -> ServerSentEvent:
        chunks = self._renderer.silence()
        return _Encoded(events(chunks)) if chunks else _KEEP_ALIVE


def events(chunks: Sequence[Chunk]) -> bytes:
    """Server-sent events, each with its name, if it has one."""
    return b"".join(map(_event, chunks))


def comment(news: QueuePlace | ModelLoading) -> bytes:
    """`: queued position=3 first_token_ms=1200` or `: model is loading (40 %)`, which readers of server-sent
    events never see."""
    if isinstance(news, ModelLoading):
        return b": model is loading (%d %%)\n\n" % int(100 * news.fraction)
    place = news
    return b": queued position=%d first_token_ms=%d\n\n" % (place.position, round(place.first_token_ms))


def _event(chunk: Chunk) -> bytes:
    if chunk.event is None:
        return b"data: %b\n\n" % chunk.json
    return b"event: %b\ndata: %b\n\n" % (chunk.event.encode(), chunk.json)


def _told(error: Exception, ticket: Ticket) -> ErrorObject:
    """Logs the failure. The status is out already, so the last event says what went wrong; no last words
    follow."""
    ticket.failed(error)
    return error_object(error, request_id=ticket.id)
