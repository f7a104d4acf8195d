"""`GET /v1/chat/completions` as a WebSocket: many requests at once, each on the way that a POST goes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import partial

import anyio
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect

from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.calls.running import Running
from openai_cpu_server.api.calls.socket_messages import (
    Ask,
    Cancel,
    about,
    done,
    failed,
    queued,
    read_message,
    waking,
)
from openai_cpu_server.api.calls.trial import Trial
from openai_cpu_server.api.errors import failure_of
from openai_cpu_server.api.gates.ticket import Endings, Ticket, new_request_id, ticket_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.contract.messages import ModelLoading, Place
from openai_cpu_server.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidRequest,
    RequestNotFound,
    RequestsLimited,
    Unauthorized,
)
from openai_cpu_server.http.body import BodyBudget, HeldBody
from openai_cpu_server.http.context import PRIORITY_HEADER, RequestContext, Sender, context_of
from openai_cpu_server.http.identity import SUBPROTOCOL
from openai_cpu_server.observe.ended import Origin

_RETRY_S = 1.0


class SocketRoute:
    """The handshake. What is wrong with it is answered as for a request, before the socket opens."""

    def __init__(
        self,
        route: GenerationRoute,
        *,
        keys: KeyRing,
        limits: RateLimits,
        bodies: BodyBudget,
        endings: Endings,
        options: ApiOptions,
    ) -> None:
        self._route = route
        self._keys = keys
        self._limits = limits
        self._bodies = bodies
        self._endings = endings
        self._options = options

    async def serve(self, websocket: WebSocket) -> None:
        self.sender(
            websocket, context_of(websocket.scope).identity
        )  # refuses a wrong priority before it opens
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
        return context_of(websocket.scope).identity_now(self._keys)

    def sender(self, websocket: WebSocket, identity: Identity) -> Sender:
        """The handshake's header is for requests that name no priority. Raises InvalidRequest."""
        at_handshake = Sender.of(
            identity,
            header=websocket.headers.get(PRIORITY_HEADER),
            default=self._options.default_priority,
        )
        return Sender(identity, default_priority=at_handshake.priority())

    def lease(self, identity: Identity) -> Lease:
        return self._limits.lease(identity.key)

    def held(self, num_bytes: int) -> HeldBody:
        """A message's part of what all bodies may have. Raises BodiesFull."""
        held = HeldBody(self._bodies, num_bytes)
        held.has_grown(num_bytes)
        return held

    def end(self, ticket: Ticket) -> None:
        self._endings.end(ticket)


class _Request:
    """One of a socket's requests, from its message to its last one."""

    def __init__(self, name: str, ticket: Ticket, body: bytes, held: HeldBody) -> None:
        self.name = name
        self.ticket = ticket
        self._body = body
        self._held = held
        self._running: Running | None = None
        self._is_cancelled = False

    def take_body(self) -> bytes:
        """Gives the body away: nothing is kept of it while the call waits and is told."""
        body, self._body = self._body, b""
        return body

    def release(self) -> None:
        """The body is understood, or will never be."""
        self._body = b""
        self._held.release()

    def goes_by(self, name: str) -> bool:
        return name == self.name or (self._running is not None and name == self._running.call.id)

    def cancel(self) -> None:
        """Ends it, at once or when it is submitted; its last message says that somebody has cancelled it."""
        self._is_cancelled = True
        if self._running is not None:
            self._running.cancel()

    def submitted(self, running: Running) -> None:
        self._running = running
        if self._is_cancelled:
            running.cancel()


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
        """Answers wrong messages here, so that a client that reads none of the answers is not read either."""
        try:
            if len(data) > self._shared.options.max_body_bytes:
                raise BodyTooLarge(self._shared.options.max_body_bytes)
            held = self._shared.held(len(data))
            try:
                message = await off_loop(len(data), partial(read_message, data))
                if isinstance(message, Cancel):
                    self._cancel(message.name)
                else:
                    self._begin(message, held, group)
                    return
            except BaseException:
                held.release()
                raise
            held.release()
        except Exception as error:
            await self._send(self._refused(error))

    def _refused(self, error: Exception) -> bytes:
        """The message that begins no request has come to its end; that counts as a refused POST does."""
        ticket = self._ticket()
        with contextlib.suppress(Unauthorized, Forbidden):
            identity = self._shared.identity(self._websocket)
            ticket.client = identity.holder
            if not isinstance(error, RequestNotFound):  # of one to cancel: this was not to generate
                ticket.priority = self._shared.sender(self._websocket, identity).default_priority
        message = self._failed(None, ticket, error, {"x-request-id": ticket.id})
        self._end(ticket)
        return message

    def _cancel(self, name: str) -> None:
        """Raises RequestNotFound."""
        named = [request for request in self._running.values() if request.goes_by(name)]
        if not named:
            raise RequestNotFound(name)
        for request in named:
            request.cancel()

    def _begin(self, ask: Ask, held: HeldBody, group: TaskGroup) -> None:
        """The request will release what is held. Raises InvalidRequest, RequestsLimited: then it does not."""
        limit = self._shared.options.max_socket_requests
        if len(self._running) >= limit:
            said = f"requests at once on one WebSocket: Limit {limit}"
            raise RequestsLimited(said, retry_after_s=_RETRY_S)
        if ask.name in self._running:
            message = f"A request with the request_id '{ask.name}' is running on this socket."
            raise InvalidRequest(message, param="request_id", code="invalid_value")
        ticket = self._ticket()
        request = _Request(ask.name or ticket.id, ticket, ask.body, held)
        self._running[request.name] = request
        group.start_soon(self._serve, request)

    def _ticket(self) -> Ticket:
        """Requests count and are logged one by one, in the trace of the handshake."""
        socket = ticket_of(self._websocket.scope)
        return Ticket(
            new_request_id(),
            "POST",
            socket.path,
            socket.route,
            origin=Origin.WEBSOCKET,
            trace=socket.trace,
        )

    async def _serve(self, request: _Request) -> None:
        """The last message goes out when the request has given up all that it held, and its name."""
        ticket, name, headers = request.ticket, request.name, {"x-request-id": request.ticket.id}
        try:
            identity = self._shared.identity(self._websocket)
            ticket.client = identity.holder
            sender = self._shared.sender(self._websocket, identity)
            ticket.priority = sender.default_priority
            lease = self._shared.lease(identity)
            try:
                async with lease:
                    headers |= await self._answer(request, sender, lease)
            finally:
                headers |= lease.headers
            ticket.status = 200
            last = done(name, headers)
        except Exception as error:
            last = self._failed(name, ticket, error, headers)
        finally:
            request.release()
            del self._running[name]
            self._end(ticket)
        await self._send(last)

    async def _answer(self, request: _Request, sender: Sender, lease: Lease) -> Mapping[str, str]:
        """Returns the headers that the response of a POST would have."""
        route, name = self._shared.route, request.name
        trial = Trial(submitted=request.submitted)
        timeout_s = self._shared.options.request_timeout_s
        context = RequestContext(request.ticket, sender, lease, timeout_s=timeout_s)
        running = await route.begin(request.take_body(), context, trial)
        request.release()
        request.submitted(running)
        if running.call.stream:
            await self._stream(name, running)
        else:
            await self._send(about(name, await route.whole(running)))
        return running.call.headers

    async def _stream(self, name: str, running: Running) -> None:
        async with running:
            async for said in running.tell(self._shared.route.renderer(running)):
                if isinstance(said, Place):
                    await self._send(queued(name, running.call.id, said))
                    continue
                if isinstance(said, ModelLoading):
                    await self._send(waking(name, running.call.id, said))
                    continue
                for chunk in said:
                    await self._send(about(name, chunk.json))

    async def _send(self, message: bytes) -> None:
        """Waits while the client does not read; events that come meanwhile are held up to a limit."""
        if not self._is_open:
            return
        try:
            await self._websocket.send_text(message.decode())
        except (WebSocketDisconnect, RuntimeError):  # the latter: it is closing for a reason of the server's
            self._close()

    def _failed(
        self, name: str | None, ticket: Ticket, error: Exception, headers: Mapping[str, str]
    ) -> bytes:
        """Makes the last message. What ends because its client has left is no failure, as over HTTP."""
        if self._is_open:
            ticket.failed(error)
            ticket.status = failure_of(error).status
        return failed(name, error, ticket_id=ticket.id, headers=headers)

    def _end(self, ticket: Ticket) -> None:
        if not self._is_open:
            ticket.client_gone()
        self._shared.end(ticket)

    def _close(self) -> None:
        self._is_open = False
        for request in self._running.values():
            request.cancel()
