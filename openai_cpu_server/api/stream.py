"""A call's events as server-sent events, for as long as its client listens."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.errors import INTERNAL, error_object, failure_of
from openai_cpu_server.api.queue_news import QueueNews, comment
from openai_cpu_server.api.render.common import DONE, Usage
from openai_cpu_server.api.tally import Tally
from openai_cpu_server.api.ticket import Ticket, ticket_of
from openai_cpu_server.contract.engine import Generation, Timings
from openai_cpu_server.contract.messages import Place, TokenEvent

logger = logging.getLogger(__name__)

_FAREWELL_S = 1.0
"""When the server ends, a stream may still say that it does."""


class StreamRenderer(Protocol):
    """Events to the bytes of chunks, `data: ` and blank line included."""

    def chunks(self, event: TokenEvent) -> bytes: ...

    def usage(self, usage: Usage, timings: Timings) -> bytes: ...


class StreamedCall:
    """The response of a call with `stream`. It owns the generation: when it ends, however, that ends too."""

    def __init__(
        self,
        call: Call,
        generation: Generation,
        renderer: StreamRenderer,
        *,
        headers: Mapping[str, str],
        keep_alive_s: float,
    ) -> None:
        self._call = call
        self._generation = generation
        self._renderer = renderer
        self._headers = {"cache-control": "no-cache", **headers}
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket, tally = ticket_of(scope), Tally(self._call)
        try:
            async with self._generation:
                await self._response(ticket, tally)(scope, receive, send)
        finally:
            if not tally.is_complete:
                ticket.client_gone()
            tally.report(ticket, self._generation.timings)

    def _response(self, ticket: Ticket, tally: Tally) -> EventSourceResponse:
        return EventSourceResponse(
            self._messages(ticket, tally),
            headers=self._headers,
            sep="\n",
            ping=self._keep_alive_s,
            ping_message_factory=_keep_alive,
            shutdown_grace_period=_FAREWELL_S,
        )

    async def _messages(self, ticket: Ticket, tally: Tally) -> AsyncIterator[bytes]:
        queue = QueueNews(time.monotonic)
        try:
            async for item in self._generation.progress():
                if message := self._message(item, tally, queue):
                    yield message
            tally.is_complete = True
            yield self._end(tally)
        except Exception as error:
            tally.is_complete = True
            yield _error_event(error, ticket)

    def _message(self, item: TokenEvent | Place, tally: Tally, queue: QueueNews) -> bytes:
        if isinstance(item, Place):
            place = queue.about(item)
            return b"" if place is None else comment(place)
        tally.note(item, self._generation.arrived_s)
        chunks = self._renderer.chunks(item)
        if chunks:
            queue.end()
        return chunks

    def _end(self, tally: Tally) -> bytes:
        if not self._call.include_usage:
            return DONE
        return self._renderer.usage(tally.usage(), self._generation.timings) + DONE


def _keep_alive() -> ServerSentEvent:
    return ServerSentEvent(comment="keep-alive", sep="\n")


def _error_event(error: Exception, ticket: Ticket) -> bytes:
    """The status is out already: the last event says what went wrong, and no `[DONE]` follows."""
    if failure_of(error) == INTERNAL:
        logger.error("request %s failed", ticket.id, exc_info=error)
    ticket.failed(error)
    return b"event: error\ndata: " + msgspec.json.encode(error_object(error, request_id=ticket.id)) + b"\n\n"
