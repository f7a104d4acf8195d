"""Requests of a socket are checked against the current keys."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import anyio
import msgspec
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect

from openai_cpu_server.errors import RequestsLimited
from openai_cpu_server.http.body import BodyBudget, BodyQuota
from openai_cpu_server.http.context import (
    Caller,
    RequestContext,
    RequestHistory,
    RequestLog,
    ServedRequest,
    context_of,
    served,
)
from openai_cpu_server.http.keys import Identity, KeyRing, works_for
from openai_cpu_server.http.limits import RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.observe.ended import RequestOrigin


class Exchange(Protocol):
    async def take(self, data: bytes) -> None:
        """Reading is paused until this returns. Longer work goes to `OpenSocket.start`."""

    def cancel(self) -> None: ...


class SocketState(NamedTuple):
    keys: KeyRing
    limits: RateLimits
    bodies: BodyBudget
    history: RequestHistory
    options: ApiOptions


@dataclass(frozen=True)
class SocketServer:
    """Handshake errors are ordinary HTTP responses."""

    exchange: Callable[[OpenSocket], Exchange]
    state: SocketState
    subprotocol: str | None = None

    async def serve(self, websocket: WebSocket) -> None:
        socket = OpenSocket(websocket, self.state)
        socket.caller(context_of(websocket.scope).identity)  # refuses wrong headers before it opens
        is_offered = self.subprotocol in websocket.scope["subprotocols"]
        await websocket.accept(subprotocol=self.subprotocol if is_offered else None)
        await socket.run(self.exchange(socket))


class OpenSocket:
    def __init__(self, websocket: WebSocket, state: SocketState) -> None:
        self._websocket = websocket
        self._state = state
        self._handshake = context_of(websocket.scope)
        self._group: TaskGroup | None = None
        self._exchange: Exchange | None = None
        self.is_open = True
        self.options = state.options
        self.id = self._handshake.request_log.id

    async def run(self, exchange: Exchange) -> None:
        self._exchange = exchange
        async with anyio.create_task_group() as self._group:
            try:
                while (message := await self._websocket.receive())["type"] == "websocket.receive":
                    text = message.get("text")
                    await exchange.take(text.encode() if text is not None else message.get("bytes") or b"")
            finally:
                self._close()

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._group is not None, "it runs"
        self._group.start_soon(work)

    async def send(self, message: bytes) -> None:
        if not self.is_open:
            return
        try:
            await self._websocket.send_text(message.decode())
        except (WebSocketDisconnect, RuntimeError):  # the latter: it is closing for a reason of the server's
            self._close()

    def held(self, num_bytes: int) -> BodyQuota:
        """Reserve memory for a message. Raises BodiesFull."""
        quota = BodyQuota(self._state.bodies, num_bytes)
        quota.has_grown(num_bytes)
        return quota

    def new_request_log(self, *, has_headers: bool = False) -> RequestLog:
        """`has_headers`: the last message has a response's."""
        return self._handshake.request_log.inner(RequestOrigin.WEBSOCKET, has_headers=has_headers)

    def serving(self, request_log: RequestLog) -> AbstractAsyncContextManager[ServedRequest]:
        return served(request_log, self._state.history.end, has_left=lambda: not self.is_open)

    def context(self, request_log: RequestLog) -> RequestContext:
        """Check the current keys. Raises Unauthorized, Forbidden."""
        identity = self._handshake.identity_now(self._state.keys)
        caller = self.caller(identity)
        request_log.client, request_log.priority = identity.holder, caller.default_priority
        works_for(identity)
        timeout_s = self.options.request_timeout_s
        return RequestContext(
            request_log, caller, reservation=self._state.limits.reservation(identity.key), timeout_s=timeout_s
        )

    def caller(self, identity: Identity) -> Caller:
        """The handshake's priority is the messages' default. Raises InvalidRequest."""
        caller = Caller.of(identity, self._websocket.headers, self.options.default_priority)
        caller.wants_progress()
        return msgspec.structs.replace(caller, priority_header=None, default_priority=caller.priority())

    def _close(self) -> None:
        self.is_open = False
        if self._exchange is not None:
            self._exchange.cancel()


def too_many(what: str, limit: int) -> RequestsLimited:
    return RequestsLimited(f"{what} on one WebSocket: Limit {limit}", retry_after_s=1.0)
