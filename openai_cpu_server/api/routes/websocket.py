"""`GET /v1/chat/completions` as a WebSocket: many requests at once, each on the way that a POST goes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect

from openai_cpu_server.api.access.authentication import identity_now, identity_of
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.origins import check_origin
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.auth import SUBPROTOCOL
from openai_cpu_server.api.endings import Endings
from openai_cpu_server.api.errors import INTERNAL, failure_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.queue_news import QueueNews
from openai_cpu_server.api.resolve.priority import HEADER, priority_of
from openai_cpu_server.api.routes.generation import Begun, GenerationRoute
from openai_cpu_server.api.socket_messages import (
    Ask,
    Cancel,
    about,
    done,
    failed,
    objects,
    queued,
    read_message,
)
from openai_cpu_server.api.tally import Tally
from openai_cpu_server.api.ticket import Ticket, new_request_id, ticket_of
from openai_cpu_server.contract.messages import Place
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidRequest,
    RequestNotFound,
    RequestsLimited,
    Unauthorized,
)
from openai_cpu_server.observe.ended import Origin

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


class SocketRoute:
    """The handshake. What is wrong with it is answered as a request would be, before the socket opens."""

    def __init__(
        self,
        route: GenerationRoute,
        *,
        keys: KeyRing,
        limits: RateLimits,
        endings: Endings,
        options: ApiOptions,
        cancel: Callable[[str], object],
    ) -> None:
        """`cancel` ends a call by its id, so that whoever reads it gets RequestCancelled."""
        self._route = route
        self._keys = keys
        self._limits = limits
        self._endings = endings
        self._options = options
        self._cancel = cancel

    async def serve(self, websocket: WebSocket) -> None:
        check_origin(websocket.headers, self._options.cors_origins)
        self.priority(websocket, identity_of(websocket.scope))
        offered = SUBPROTOCOL in websocket.scope["subprotocols"]
        await websocket.accept(subprotocol=SUBPROTOCOL if offered else None)
        await _Socket(websocket, self).run()

    # -- what its sockets share --------------------------------------------------------------------

    @property
    def route(self) -> GenerationRoute:
        return self._route

    @property
    def options(self) -> ApiOptions:
        return self._options

    def identity(self, websocket: WebSocket) -> Identity:
        """Keys may have been read again since the handshake. Raises Unauthorized, Forbidden."""
        return identity_now(websocket.scope, self._keys)

    def priority(self, websocket: WebSocket, identity: Identity) -> Priority:
        """Of requests that name none. Raises InvalidRequest."""
        return priority_of(
            header=websocket.headers.get(HEADER),
            field=None,
            tier=None,
            default=self._options.seen_by(identity.key).default_priority,
        )

    def lease(self, identity: Identity, ticket: Ticket) -> Lease:
        return self._limits.lease(identity.key, ticket.headers)

    def cancel(self, call_id: str) -> None:
        self._cancel(call_id)

    def end(self, ticket: Ticket) -> None:
        self._endings.end(ticket)


class _Request:
    """One of a socket's, from its message to its last one."""

    def __init__(self, name: str, ticket: Ticket, cancel: Callable[[str], object]) -> None:
        self.name = name
        self.ticket = ticket
        self._cancel = cancel
        self._call_id: str | None = None
        self._is_cancelled = False

    def goes_by(self, name: str) -> bool:
        return name in (self.name, self._call_id)

    def cancel(self) -> None:
        """It ends by itself, as one that somebody else has cancelled; at once, or when it is submitted."""
        self._is_cancelled = True
        if self._call_id is not None:
            self._cancel(self._call_id)

    def submitted(self, call_id: str) -> None:
        self._call_id = call_id
        if self._is_cancelled:
            self._cancel(call_id)


class _Socket:
    """An open socket. When it closes, all of its requests end."""

    def __init__(self, websocket: WebSocket, shared: SocketRoute) -> None:
        self._websocket = websocket
        self._shared = shared
        self._running: dict[str, _Request] = {}
        self._is_open = True

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            try:
                async for data in self._received():
                    await self._take(data, group)
            finally:
                self._close()

    async def _received(self) -> AsyncIterator[bytes]:
        while (message := await self._websocket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            yield message["bytes"] if text is None else text.encode()

    async def _take(self, data: bytes, group: TaskGroup) -> None:
        """Answers wrong messages here: a client that reads none of the answers is not read either."""
        try:
            if len(data) > self._shared.options.max_body_bytes:
                raise BodyTooLarge(self._shared.options.max_body_bytes)
            message = await off_loop(len(data), partial(read_message, data))
            if isinstance(message, Cancel):
                self._cancel(message.name)
            else:
                self._begin(message, group)
        except Exception as error:
            await self._send(self._refused(error))

    def _refused(self, error: Exception) -> bytes:
        """The message that begins no request has come to its end; that counts as a refused POST does."""
        ticket = self._ticket()
        with contextlib.suppress(Unauthorized, Forbidden):
            identity = self._shared.identity(self._websocket)
            ticket.client = identity.holder
            if not isinstance(error, RequestNotFound):  # of one to cancel: this was not to generate
                ticket.priority = self._shared.priority(self._websocket, identity)
        message = self._failed(None, ticket, error)
        self._end(ticket)
        return message

    def _cancel(self, name: str) -> None:
        """Raises RequestNotFound."""
        named = [request for request in self._running.values() if request.goes_by(name)]
        if not named:
            raise RequestNotFound(name)
        for request in named:
            request.cancel()

    def _begin(self, ask: Ask, group: TaskGroup) -> None:
        """Raises InvalidRequest, RequestsLimited."""
        limit = self._shared.options.max_socket_requests
        if len(self._running) >= limit:
            said = f"requests at once on one WebSocket: Limit {limit}"
            raise RequestsLimited(said, retry_after_s=_RETRY_S)
        if ask.name in self._running:
            message = f"A request with the request_id '{ask.name}' is running on this socket."
            raise InvalidRequest(message, param="request_id", code="invalid_value")
        ticket = self._ticket()
        request = _Request(ask.name or ticket.id, ticket, self._shared.cancel)
        self._running[request.name] = request
        group.start_soon(self._serve, request, ask.body)

    def _ticket(self) -> Ticket:
        """Requests count and are logged one by one, in the trace of the handshake."""
        socket = ticket_of(self._websocket.scope)
        return Ticket(new_request_id(), "POST", socket.path, Origin.WEBSOCKET, trace=socket.trace)

    async def _serve(self, request: _Request, data: bytes) -> None:
        """The last message goes out when the request has given up all that it held, and its name."""
        ticket, name = request.ticket, request.name
        try:
            identity = self._shared.identity(self._websocket)
            ticket.client = identity.holder
            ticket.priority = self._shared.priority(self._websocket, identity)
            async with self._shared.lease(identity, ticket) as lease:
                headers = await self._generate(request, data, identity, lease)
            ticket.status = 200
            last = done(name, {"x-request-id": ticket.id, **ticket.headers, **headers})
        except Exception as error:
            last = self._failed(name, ticket, error)
        finally:
            del self._running[name]
            self._end(ticket)
        await self._send(last)

    async def _generate(
        self, request: _Request, data: bytes, identity: Identity, lease: Lease
    ) -> dict[str, str]:
        route, priority = self._shared.route, self._shared.priority(self._websocket, identity)
        around = route.around(identity, priority_header=None)
        options = msgspec.structs.replace(around.options, default_priority=priority)
        around = msgspec.structs.replace(around, options=options)
        begun = await route.begin(data, around, request.ticket, lease)
        request.submitted(begun.call.id)
        try:
            if begun.call.stream:
                await self._stream(request, begun)
            else:
                whole = await route.whole(begun, request.ticket)
                await self._send(about(request.name, whole))
        finally:
            lease.output_tokens = int(request.ticket.notes.get("output_tokens", 0))
        return begun.resolved.headers

    async def _stream(self, request: _Request, begun: Begun) -> None:
        call, generation, tally = begun.call, begun.generation, Tally(begun.call)
        renderer, queue = self._shared.route.stream_renderer(call), QueueNews(time.monotonic)
        try:
            async with generation:
                async for item in generation.progress():
                    if isinstance(item, Place):
                        await self._tell_place(request.name, call.id, queue.about(item))
                        continue
                    tally.note(item, generation.arrived_s)
                    if chunks := renderer.chunks(item):
                        queue.end()
                        await self._send_chunks(request.name, chunks)
            if call.include_usage:
                await self._send_chunks(request.name, renderer.usage(tally.usage(), generation.timings))
        finally:
            tally.is_complete = True
            tally.report(request.ticket, generation.timings)

    async def _tell_place(self, name: str, call_id: str, place: Place | None) -> None:
        if place is not None:
            await self._send(queued(name, call_id, place))

    async def _send_chunks(self, name: str, events: bytes) -> None:
        for chunk in objects(events):
            await self._send(about(name, chunk))

    async def _send(self, message: bytes) -> None:
        """Waits while the client does not read; events that come meanwhile are held up to a limit."""
        if not self._is_open:
            return
        try:
            await self._websocket.send_text(message.decode())
        except (WebSocketDisconnect, RuntimeError):  # the latter: it is closing for a reason of the server's
            self._close()

    def _failed(self, name: str | None, ticket: Ticket, error: Exception) -> bytes:
        """The last message. What ends because its client has left is no failure, as over HTTP."""
        if failure_of(error) == INTERNAL:
            logger.error("request %s failed", ticket.id, exc_info=error)
        if self._is_open:
            ticket.failed(error)
            ticket.status = failure_of(error).status
        headers = {"x-request-id": ticket.id, **ticket.headers}
        return failed(name, error, ticket_id=ticket.id, headers=headers)

    def _end(self, ticket: Ticket) -> None:
        if not self._is_open:
            ticket.client_gone()
        self._shared.end(ticket)

    def _close(self) -> None:
        self._is_open = False
        for request in self._running.values():
            request.cancel()
