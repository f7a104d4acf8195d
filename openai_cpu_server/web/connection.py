"""One HTTP connection of uvicorn's, with limits of time and size, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, ClassVar

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

_MAX_HEADER_BYTES = 64 * 1024
_EXCESS_READ_S = 2.0
"""The seconds in which a connection beyond the limit must send its request, which is then refused."""
_UNSENT_BYTES = 128 * 1024
"""Bytes of a response that the kernel takes before the client has room for them."""
_NOT_SENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_connections: int
    read_timeout_s: float
    """Seconds for the headers of a request, counted from the start of the
    connection or the end of the last response."""
    write_timeout_s: float
    """The seconds after which a client that does not read is dropped."""
    excess_mark: str
    """The key in the connection's state that marks connections beyond the limit for the application."""


class _Timer:
    """One timer, which runs at most once at a time."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, transport: asyncio.Transport) -> None:
        """Drop the connection after this time, with whatever is unsent, unless the timer is stopped."""
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LimitedConnection(HttpToolsProtocol):
    """One timer runs while headers are awaited, another while the client takes no data."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._reading = _Timer()
        self._writing = _Timer()
        self._awaits_headers = True
        self._header_bytes = 0
        super().connection_made(transport)
        _bound_send_buffer(transport)
        read_s = self.limits.read_timeout_s
        if len(self.connections) > self.limits.max_connections:
            self.app_state = {**self.app_state, self.limits.excess_mark: True}
            read_s = min(read_s, _EXCESS_READ_S)
        self._reading.start(read_s, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading.stop()
        self._writing.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if (
            self._awaits_headers
            and self._header_bytes > _MAX_HEADER_BYTES
            and not self.transport.is_closing()
        ):
            self._refuse(431, "The request's headers are too large.", "headers_too_large")

    def on_message_begin(self) -> None:
        self._awaits_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._awaits_headers = False
        self._header_bytes = 0
        self._reading.stop()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._writing.start(self.limits.write_timeout_s, self.transport)
        elif self.cycle.response_complete:  # and no other request was behind it already
            self._reading.start(self.limits.read_timeout_s, self.transport)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._writing.start(self.limits.write_timeout_s, self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(self.limits.write_timeout_s, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._writing.stop()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg, "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer a request that never reaches the application, and close."""
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        body = json.dumps({"error": error}).encode()
        reason = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}[status]
        head = (
            b"HTTP/1.1 %d %s" % (status, reason),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
        )
        self.transport.write(b"\r\n".join((*head, b"", body)))
        self.transport.close()
        self._writing.start(self.limits.write_timeout_s, self.transport)


def limited_connection(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """A protocol class for uvicorn, which makes one object of it for each connection."""
    bound: dict[str, Any] = {"limits": limits}
    return type("LimitedConnection", (LimitedConnection,), bound)


class LimitedSocket(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. It is dropped, too, if its client takes no data."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writing = _Timer()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writing.stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(self.limits.write_timeout_s, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing.stop()


def limited_socket(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The same for WebSockets as `limited_connection` for HTTP."""
    bound: dict[str, Any] = {"limits": limits}
    return type("LimitedSocket", (LimitedSocket,), bound)


def _bound_send_buffer(transport: asyncio.Transport) -> None:
    sock = transport.get_extra_info("socket")
    if _NOT_SENT_LOWAT is not None and sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _NOT_SENT_LOWAT, _UNSENT_BYTES)
