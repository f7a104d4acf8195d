"""`/v1/responses` as a WebSocket: OpenAI's WebSocket mode, one response after the other.

A message is `{"type": "response.create", ...}` with the body of a POST, without `stream` and `background`;
the answers are the events of a stream. The last response of a socket can be gone on from though it is not
stored. With `generate: false` only the prompt is read, for the turns to come.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import anyio
import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import RateLimits
from openai_cpu_server.api.errors import ErrorBody, error_object, failure_of
from openai_cpu_server.api.gates.ticket import Endings, Ticket, new_request_id, ticket_of
from openai_cpu_server.api.offload import off_loop
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.routes.responses.making import Maker, Making
from openai_cpu_server.api.routes.responses.turns import Recent, TurnReader
from openai_cpu_server.contract.messages import ModelLoading, Place
from openai_cpu_server.errors import BodiesFull, BodyTooLarge, InvalidRequest, RequestsLimited
from openai_cpu_server.http.body import BodyBudget, HeldBody
from openai_cpu_server.http.context import PRIORITY_HEADER, RequestContext, Sender, context_of
from openai_cpu_server.json_size import check_size
from openai_cpu_server.observe.ended import Origin

_CREATE = "response.create"
_RETRY_S = 1.0


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing comes of a message, or a response has ended with a failure."""

    type: str = "error"
    status: int
    error: ErrorBody


class ResponsesSocket:
    """The handshake, and what all of its sockets share."""

    def __init__(
        self,
        reader: TurnReader,
        maker: Maker,
        *,
        keys: KeyRing,
        limits: RateLimits,
        bodies: BodyBudget,
        endings: Endings,
        options: ApiOptions,
    ) -> None:
        self.reader = reader
        self.maker = maker
        self.keys = keys
        self.limits = limits
        self.bodies = bodies
        self.endings = endings
        self.options = options

    async def serve(self, websocket: WebSocket) -> None:
        self.sender(
            websocket, context_of(websocket.scope).identity
        )  # refuses a wrong priority before it opens
        await websocket.accept()
        await _Socket(websocket, self).run()

    def sender(self, websocket: WebSocket, identity: Identity) -> Sender:
        """The handshake's header is for requests that name no priority. Raises InvalidRequest."""
        header = websocket.headers.get(PRIORITY_HEADER)
        at_handshake = Sender.of(identity, header=header, default=self.options.default_priority)
        return Sender(identity, default_priority=at_handshake.priority())


class _Message:
    """A message that waits, and its part of what all bodies may have. Raises BodiesFull."""

    def __init__(self, data: bytes, bodies: BodyBudget) -> None:
        self.data = data
        self._held = HeldBody(bodies, len(data))
        self._held.has_grown(len(data))

    def take(self) -> bytes:
        """Gives the data away: nothing is kept of it while the response is told."""
        data, self.data = self.data, b""
        return data

    def release(self) -> None:
        """It is understood, or will never be."""
        self.data = b""
        self._held.release()


class _Socket:
    """An open socket. When it closes, its response ends."""

    def __init__(self, websocket: WebSocket, shared: ResponsesSocket) -> None:
        self._websocket = websocket
        self._shared = shared
        self._waiting: deque[_Message] = deque()
        self._news = anyio.Event()
        self._making: Making | None = None
        self._recent: Recent | None = None
        self._is_open = True

    async def run(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._receive)
            while await self._has_message():
                await self._serve(self._waiting.popleft())
            group.cancel_scope.cancel()
        for message in self._waiting:
            message.release()

    async def _has_message(self) -> bool:
        """False: the socket has closed."""
        while self._is_open and not self._waiting:
            await self._news.wait()
        return self._is_open

    async def _receive(self) -> None:
        while self._is_open:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._close()
                return
            text = message.get("text")
            await self._take(text.encode() if text is not None else message.get("bytes") or b"")

    async def _take(self, data: bytes) -> None:
        """Messages wait for their turn, up to a limit, and together have no more bytes than one may have."""
        if refusal := self._no_room(len(data)):
            await self._refuse(refusal, ticket_of(self._websocket.scope).id)
            return
        try:
            self._waiting.append(_Message(data, self._shared.bodies))
        except BodiesFull as error:
            await self._refuse(error, ticket_of(self._websocket.scope).id)
            return
        news, self._news = self._news, anyio.Event()
        news.set()

    def _no_room(self, num_bytes: int) -> RequestsLimited | None:
        options = self._shared.options
        if len(self._waiting) >= options.max_socket_requests:
            said = f"requests at once on one WebSocket: Limit {options.max_socket_requests}"
            return RequestsLimited(said, retry_after_s=_RETRY_S)
        if self._waiting and sum(len(one.data) for one in self._waiting) + num_bytes > options.max_body_bytes:
            said = f"bytes of requests that wait on one WebSocket: Limit {options.max_body_bytes}"
            return RequestsLimited(said, retry_after_s=_RETRY_S)
        return None

    async def _serve(self, message: _Message) -> None:
        handshake = ticket_of(self._websocket.scope)
        ticket = Ticket(
            new_request_id(),
            "POST",
            handshake.path,
            handshake.route,
            origin=Origin.WEBSOCKET,
            trace=handshake.trace,
        )
        ticket.has_headers = False
        try:
            await self._answer(message, ticket)
            ticket.status = 200
        except Exception as error:
            await self._failed(error, ticket)
        finally:
            message.release()
            self._making = None
            if not self._is_open:
                ticket.client_gone()
            self._shared.endings.end(ticket)

    async def _answer(self, message: _Message, ticket: Ticket) -> None:
        shared = self._shared
        identity = context_of(self._websocket.scope).identity_now(shared.keys)
        ticket.client = identity.holder
        sender = shared.sender(self._websocket, identity)
        ticket.priority = sender.default_priority
        data = message.take()
        if len(data) > shared.options.max_body_bytes:
            raise BodyTooLarge(shared.options.max_body_bytes)
        body, is_to_generate = await off_loop(len(data), partial(_body, data))
        del data
        async with shared.limits.lease(identity.key) as lease:
            read = await shared.reader.read(body, identity, self._recent)
            del body  # nothing is kept of it while the response is told
            if read.body.previous_response_id is not None:
                self._recent = None  # an error in its middle leaves nothing to go on from
            context = RequestContext(ticket, sender, lease, timeout_s=shared.options.request_timeout_s)
            asked = read if is_to_generate else read.without_output()
            making = await shared.maker.begin(asked, context)
            message.release()
            await (self._tell(making) if is_to_generate else self._warm(making))

    async def _tell(self, making: Making) -> None:
        self._making = making
        if not self._is_open:
            making.running.cancel()
        async with making.running:
            async for said in making.told():
                chunks = making.stream.waits(said) if isinstance(said, (Place, ModelLoading)) else said
                for chunk in chunks:
                    await self._send(chunk.json)
        self._recent = making.recent()

    async def _warm(self, making: Making) -> None:
        """The prompt is read, so that the next turn finds it computed; the token behind it is not shown."""
        for chunk in await making.warmed():
            await self._send(chunk.json)
        self._recent = making.recent()

    async def _failed(self, error: Exception, ticket: Ticket) -> None:
        ticket.failed(error)
        ticket.status = failure_of(error).status
        if self._making is None:
            await self._refuse(error, ticket.id)
            return
        for chunk in self._making.stream.error(error_object(error, request_id=ticket.id)):
            await self._send(chunk.json)

    async def _refuse(self, error: Exception, ticket_id: str) -> None:
        body = error_object(error, request_id=ticket_id).error
        await self._send(msgspec.json.encode(Refused(status=failure_of(error).status, error=body)))

    async def _send(self, message: bytes) -> None:
        """Waits while the client does not read."""
        if not self._is_open:
            return
        try:
            await self._websocket.send_text(message.decode())
        except (WebSocketDisconnect, RuntimeError):  # the latter: it is closing for a reason of the server's
            self._close()

    def _close(self) -> None:
        self._is_open = False
        self._news.set()
        if self._making is not None:
            self._making.running.cancel()


def _body(data: bytes) -> tuple[bytes, bool]:
    """The body of a POST that streams, and whether there is to be an output: not with `generate: false`.

    Raises InvalidRequest, TooManyValues.
    """
    check_size(data)
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(fields.pop("type", b"null"), type=str)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        message = f"A message is a JSON object with the type '{_CREATE}'."
        raise InvalidRequest(message, param="type", code="invalid_value") from None
    if kind != _CREATE:
        message = f"Invalid value for 'type': expected '{_CREATE}'."
        raise InvalidRequest(message, param="type", code="invalid_value")
    if "background" in fields and bytes(fields["background"]).strip() == b"true":
        message = "'background' is not possible over a WebSocket."
        raise InvalidRequest(message, param="background", code="unsupported_value")
    fields["stream"] = msgspec.Raw(b"true")
    is_to_generate = bytes(fields.pop("generate", b"true")).strip() != b"false"
    return msgspec.json.encode(fields), is_to_generate
