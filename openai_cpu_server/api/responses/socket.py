"""A message is a POST's body. The last response can be continued without being stored."""

from __future__ import annotations

from collections import deque
from functools import partial

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.api.generation.route import BufferedBody
from openai_cpu_server.api.generation.running import chunks_of
from openai_cpu_server.api.responses.reader import LastResponse, ResponseReader
from openai_cpu_server.api.responses.running import ResponseMaker, RunningResponse
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import RequestLog, ServedRequest
from openai_cpu_server.http.errors import ErrorBody, error_object, failure_of
from openai_cpu_server.http.sockets import OpenSocket, too_many
from openai_cpu_server.json_size import check_json_size

_CREATE = "response.create"


class SocketRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Sent if a message fails before its first event."""

    type: str = "error"
    status: int
    error: ErrorBody


class ResponsesExchange:
    def __init__(self, reader: ResponseReader, maker: ResponseMaker, socket: OpenSocket) -> None:
        self._reader = reader
        self._maker = maker
        self._socket = socket
        self._waiting: deque[BufferedBody] = deque()
        self._is_serving = False
        self._running: RunningResponse | None = None
        self._recent: LastResponse | None = None

    async def take(self, data: bytes) -> None:
        """Limit waiting messages in number, and their bytes to those of one."""
        most, most_bytes = self._socket.options.max_socket_requests, self._socket.options.max_body_bytes
        try:
            if len(self._waiting) >= most:
                raise too_many("requests at once", most)
            if self._waiting and sum(len(one.data) for one in self._waiting) + len(data) > most_bytes:
                raise too_many("bytes of requests that wait", most_bytes)
            self._waiting.append(BufferedBody(data, self._socket.held(len(data))))
        except (errors.RequestsLimited, errors.BodiesFull) as error:
            await self._refuse(error, self._socket.id)
            return
        if not self._is_serving:
            self._is_serving = True
            self._socket.start(self._serve_all)

    def cancel(self) -> None:
        if self._running is not None:
            self._running.call.cancel()
        for message in self._waiting:
            message.release()
        self._waiting.clear()

    async def _serve_all(self) -> None:
        while self._waiting and self._socket.is_open:
            message, request_log = self._waiting.popleft(), self._socket.new_request_log()
            async with self._socket.serving(request_log) as served:
                try:
                    await self._answer(message, request_log, served)
                finally:
                    message.release()
            if served.error is not None:
                await self._send_failure(served.error, request_log)
            self._running = None
        self._is_serving = False

    async def _answer(self, message: BufferedBody, request_log: RequestLog, served: ServedRequest) -> None:
        context, most_bytes = self._socket.context(request_log), self._socket.options.max_body_bytes
        data = message.take()
        if len(data) > most_bytes:
            raise errors.BodyTooLarge(most_bytes)
        body, is_to_generate = await off_loop(len(data), partial(_body, data))
        del data
        await served.hold(context)
        params = await self._reader.read(body, context.identity, self._recent)
        if params.body.previous_response_id is not None:
            self._recent = None  # after an error in its middle there is nothing to continue
        params = params if is_to_generate else params.without_output()
        running = await self._maker.begin(params, context)
        del body, params  # frees the body while the response is sent
        message.release()
        if is_to_generate:
            await self._send(running)
        else:  # the token after the prompt is not shown
            for chunk in await running.warmed():
                await self._socket.send(chunk.json)
        self._recent = running.recent()

    async def _send(self, running: RunningResponse) -> None:
        self._running = running
        if not self._socket.is_open:
            running.call.cancel()
        async with running.call:
            async for item in running.items():
                for chunk in chunks_of(item, running.stream):
                    await self._socket.send(chunk.json)

    async def _send_failure(self, error: Exception, request_log: RequestLog) -> None:
        """A response that has begun ends with an event of its own."""
        if self._running is None:
            await self._refuse(error, request_log.id)
            return
        for chunk in self._running.stream.error(error_object(error, request_id=request_log.id)):
            await self._socket.send(chunk.json)

    async def _refuse(self, error: Exception, ticket_id: str) -> None:
        body = error_object(error, request_id=ticket_id).error
        refusal = SocketRefusal(status=failure_of(error).status, error=body)
        await self._socket.send(msgspec.json.encode(refusal))


def _body(data: bytes) -> tuple[bytes, bool]:
    """Return False for `generate: false`. Raises InvalidRequest."""
    check_json_size(data)
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind = msgspec.json.decode(fields.pop("type", b"null"), type=str)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise errors.wrong(f"A message must be a JSON object with the type '{_CREATE}'.", "type") from None
    if kind != _CREATE:
        raise errors.wrong_value("type", f"'{_CREATE}'")
    if "background" in fields and bytes(fields["background"]).strip() == b"true":
        message = "'background' is not supported over a WebSocket."
        raise errors.InvalidRequest(message, param="background", code="unsupported_value")
    fields["stream"] = msgspec.Raw(b"true")
    is_to_generate = bytes(fields.pop("generate", b"true")).strip() != b"false"
    return msgspec.json.encode(fields), is_to_generate
