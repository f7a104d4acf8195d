from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Union

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.api.generation.generation import CascadeAttempt
from openai_cpu_server.api.generation.route import BufferedBody, GenerationRoute, whole_answer
from openai_cpu_server.api.generation.running import RunningCall
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace
from openai_cpu_server.http.body import BodyQuota, off_loop
from openai_cpu_server.http.context import RequestContext, RequestLog
from openai_cpu_server.http.errors import error_object, failure_of, headers_of
from openai_cpu_server.http.sockets import OpenSocket, too_many
from openai_cpu_server.json_size import MOST_TOKENS, check_json_size

_MAX_NAME_CHARS = 64


class SocketRequest(msgspec.Struct, frozen=True):
    name: str | None
    body: bytes


class SocketCancel(msgspec.Struct, frozen=True):
    name: str
    """Client's `request_id`, or the id in the chunks."""


def read_message(data: bytes) -> Union[SocketRequest, SocketCancel]:
    """Accept anything but an object as a `SocketRequest`. Raises InvalidRequest, TooManyValues."""
    check_json_size(data, most_numbers=MOST_TOKENS)
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return SocketRequest(None, data)
    if "cancel" in fields:
        name = _name(fields["cancel"], "cancel")
        if name is None or len(fields) > 1:
            message = "A message that cancels has the field 'cancel' alone, with the id of a request."
            raise errors.wrong(message, "cancel")
        return SocketCancel(name)
    name = _name(fields.pop("request_id", msgspec.Raw(b"null")), "request_id")
    if bytes(fields.get("stream", b"null")).strip() == b"null":
        fields["stream"] = msgspec.Raw(b"true")
    return SocketRequest(name, msgspec.json.encode(fields))


def _name(value: msgspec.Raw, field: str) -> str | None:
    try:
        name: str | None = msgspec.json.decode(value, type=Union[str, None])
    except (msgspec.DecodeError, UnicodeDecodeError):
        name = ""
    if name is not None and not 0 < len(name) <= _MAX_NAME_CHARS:
        raise errors.wrong_value(field, f"a string of 1 to {_MAX_NAME_CHARS} characters")
    return name


def with_request_id(name: str, json_object: bytes) -> bytes:
    return b'{"request_id":' + msgspec.json.encode(name) + b"," + json_object[1:]


def wait_event(name: str, call_id: str, news: QueuePlace | ModelLoading) -> bytes:
    fields: dict[str, object] = {"request_id": name, "id": call_id}
    if isinstance(news, ModelLoading):
        fields |= {"loaded": round(news.fraction, 2), "object": "model.loading"}
    else:
        first_token_ms = round(news.first_token_ms)
        fields |= {"position": news.position, "first_token_ms": first_token_ms, "object": "queue"}
    return msgspec.json.encode(fields)


@dataclass(eq=False)
class _Request:
    name: str
    request_log: RequestLog
    body: BufferedBody
    running: RunningCall | None = None
    is_cancelled: bool = False

    def is_named(self, name: str) -> bool:
        return name == self.name or (self.running is not None and name == self.running.call.id)

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.running is not None:
            self.running.cancel()

    def submitted(self, running: RunningCall) -> None:
        self.running = running
        if self.is_cancelled:
            running.cancel()


class ChatExchange:
    """Requests of one open socket. Implements `Exchange`."""

    def __init__(self, route: GenerationRoute, socket: OpenSocket) -> None:
        self._route = route
        self._socket = socket
        self._running: dict[str, _Request] = {}

    async def take(self, data: bytes) -> None:
        most_bytes = self._socket.options.max_body_bytes
        try:
            if len(data) > most_bytes:
                raise errors.BodyTooLarge(most_bytes)
            with contextlib.ExitStack() as holding:
                quota = self._socket.held(len(data))
                holding.callback(quota.release)
                message = await off_loop(len(data), partial(read_message, data))
                if isinstance(message, SocketCancel):
                    self._cancel(message.name)
                else:
                    self._begin(message, quota)
                    holding.pop_all()  # the request releases it
        except Exception as error:
            await self._refuse(error)

    def cancel(self) -> None:
        for request in self._running.values():
            request.cancel()

    async def _refuse(self, error: Exception) -> None:
        """Answer a message that begins no request, counted like a rejected POST."""
        request_log = self._socket.new_request_log(has_headers=True)
        async with self._socket.serving(request_log):
            with contextlib.suppress(errors.Unauthorized, errors.Forbidden):
                self._socket.context(request_log)
            if isinstance(error, errors.RequestNotFound):  # of one to cancel: this was not to generate
                request_log.priority = None
            raise error
        await self._socket.send(_failed(None, request_log, error, {}))

    def _cancel(self, name: str) -> None:
        requests = [request for request in self._running.values() if request.is_named(name)]
        if not requests:
            raise errors.RequestNotFound(name)
        for request in requests:
            request.cancel()

    def _begin(self, message: SocketRequest, quota: BodyQuota) -> None:
        """Start a request, which then releases `quota`. Raises InvalidRequest, RequestsLimited."""
        limit = self._socket.options.max_socket_requests
        if len(self._running) >= limit:
            raise too_many("requests at once", limit)
        name = message.name
        if name in self._running:
            raise errors.wrong(
                f"A request with the request_id '{name}' is running on this socket.", "request_id"
            )
        request_log = self._socket.new_request_log(has_headers=True)
        request = _Request(name or request_log.id, request_log, BufferedBody(message.body, quota))
        self._running[request.name] = request
        self._socket.start(partial(self._serve, request))

    async def _serve(self, request: _Request) -> None:
        """Send the last message after the request has released its resources and name."""
        name, request_log, headers = request.name, request.request_log, dict[str, str]()
        async with self._socket.serving(request_log) as served:
            try:
                context = self._socket.context(request_log)
                try:
                    await served.hold(context)
                    headers |= await self._answer(request, context)
                finally:
                    headers |= context.limit_headers
            finally:
                request.body.release()
                del self._running[name]
        if served.error is None:
            done = {"request_id": name, "headers": {"x-request-id": request_log.id, **headers}, "done": True}
            await self._socket.send(msgspec.json.encode(done))
        else:
            await self._socket.send(_failed(name, request_log, served.error, headers))

    async def _answer(self, request: _Request, context: RequestContext) -> Mapping[str, str]:
        name, attempt = request.name, CascadeAttempt(submitted=request.submitted)
        running = await self._route.begin(request.body.take(), context, attempt)
        request.body.release()
        request.submitted(running)
        if not running.call.stream:
            whole = await whole_answer(running, self._route.family.renderer)
            await self._socket.send(with_request_id(name, whole))
            return running.call.headers
        async with running:
            async for item in running.emit(self._route.renderer(running)):
                if isinstance(item, (QueuePlace, ModelLoading)):
                    await self._socket.send(wait_event(name, running.call.id, item))
                    continue
                for chunk in item:
                    await self._socket.send(with_request_id(name, chunk.json))
        return running.call.headers


def _failed(name: str | None, request_log: RequestLog, error: Exception, headers: Mapping[str, str]) -> bytes:
    """`name`: None without a request, such as an unknown one to cancel."""
    fields = {
        "request_id": name,
        "status": failure_of(error).status,
        "error": error_object(error, request_id=request_log.id).error,
        "headers": {"x-request-id": request_log.id, **headers, **headers_of(error)},
    }
    return msgspec.json.encode(fields)
