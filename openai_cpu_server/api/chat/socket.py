"""`GET /v1/chat/completions` as a WebSocket: many requests at once, each on the way that a POST goes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial

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
from openai_cpu_server.api.gates.ticket import Ticket
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.routes.generation import GenerationRoute
from openai_cpu_server.contract.messages import ModelLoading, Place
from openai_cpu_server.errors import BodyTooLarge, Forbidden, InvalidRequest, RequestNotFound, Unauthorized
from openai_cpu_server.http.body import HeldBody
from openai_cpu_server.http.context import RequestContext
from openai_cpu_server.http.sockets import OpenSocket, too_many


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


class ChatExchange:
    """The requests of one open socket. An `Exchange`."""

    def __init__(self, route: GenerationRoute, socket: OpenSocket) -> None:
        self._route = route
        self._socket = socket
        self._running: dict[str, _Request] = {}

    async def take(self, data: bytes) -> None:
        """Answers wrong messages here."""
        try:
            if len(data) > self._socket.options.max_body_bytes:
                raise BodyTooLarge(self._socket.options.max_body_bytes)
            held = self._socket.held(len(data))
            try:
                message = await off_loop(len(data), partial(read_message, data))
                if isinstance(message, Cancel):
                    self._cancel(message.name)
                else:
                    self._begin(message, held)
                    return
            except BaseException:
                held.release()
                raise
            held.release()
        except Exception as error:
            await self._refuse(error)

    def cancel(self) -> None:
        for request in self._running.values():
            request.cancel()

    async def _refuse(self, error: Exception) -> None:
        """The message that begins no request has come to its end; that counts as a refused POST does."""
        ticket = self._socket.ticket(has_headers=True)
        async with self._socket.serving(ticket):
            with contextlib.suppress(Unauthorized, Forbidden):
                self._socket.context(ticket)
            if isinstance(error, RequestNotFound):  # of one to cancel: this was not to generate
                ticket.priority = None
            raise error
        await self._socket.send(_failed(None, ticket, error, {}))

    def _cancel(self, name: str) -> None:
        """Raises RequestNotFound."""
        named = [request for request in self._running.values() if request.goes_by(name)]
        if not named:
            raise RequestNotFound(name)
        for request in named:
            request.cancel()

    def _begin(self, ask: Ask, held: HeldBody) -> None:
        """The request will release what is held. Raises InvalidRequest, RequestsLimited: then it does not."""
        limit = self._socket.options.max_socket_requests
        if len(self._running) >= limit:
            raise too_many("requests at once", limit)
        if ask.name in self._running:
            message = f"A request with the request_id '{ask.name}' is running on this socket."
            raise InvalidRequest(message, param="request_id", code="invalid_value")
        ticket = self._socket.ticket(has_headers=True)
        request = _Request(ask.name or ticket.id, ticket, ask.body, held)
        self._running[request.name] = request
        self._socket.start(partial(self._serve, request))

    async def _serve(self, request: _Request) -> None:
        """The last message goes out when the request has given up all that it held, and its name."""
        name, ticket, headers = request.name, request.ticket, dict[str, str]()
        async with self._socket.serving(ticket) as served:
            try:
                context = self._socket.context(ticket)
                try:
                    await served.hold(context)
                    headers |= await self._answer(request, context)
                finally:
                    headers |= context.limit_headers
            finally:
                request.release()
                del self._running[name]
        if served.error is None:
            await self._socket.send(done(name, {"x-request-id": ticket.id, **headers}))
        else:
            await self._socket.send(_failed(name, ticket, served.error, headers))

    async def _answer(self, request: _Request, context: RequestContext) -> Mapping[str, str]:
        """Returns the headers that the response of a POST would have."""
        name, trial = request.name, Trial(submitted=request.submitted)
        running = await self._route.begin(request.take_body(), context, trial)
        request.release()
        request.submitted(running)
        if running.call.stream:
            await self._stream(name, running)
        else:
            await self._socket.send(about(name, await self._route.whole(running)))
        return running.call.headers

    async def _stream(self, name: str, running: Running) -> None:
        async with running:
            async for said in running.tell(self._route.renderer(running)):
                if isinstance(said, Place):
                    await self._socket.send(queued(name, running.call.id, said))
                    continue
                if isinstance(said, ModelLoading):
                    await self._socket.send(waking(name, running.call.id, said))
                    continue
                for chunk in said:
                    await self._socket.send(about(name, chunk.json))


def _failed(name: str | None, ticket: Ticket, error: Exception, headers: Mapping[str, str]) -> bytes:
    return failed(name, error, ticket_id=ticket.id, headers={"x-request-id": ticket.id, **headers})
