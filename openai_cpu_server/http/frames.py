from __future__ import annotations

import asyncio
from collections import deque
from typing import ClassVar

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from openai_cpu_server.http.body import BYTES_PER_S
from openai_cpu_server.http.server import ConnectionLimits, Timer

_MAX_FRAGMENTS = 4096
_BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_READ_BYTES = 16 * 1024
"""Size of at most 2,700 frames, which take about 20 ms."""


class LimitedSocket(WebSocketsSansIOProtocol, asyncio.BufferedProtocol):
    """WebSocket that ends if its client does not read, or if a message is late or in too many fragments.
    Messages use the memory for bodies until taken."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._writing = Timer()
        self._held = self.limits.messages()
        self._message = bytearray()
        self._num_fragments = 0
        self._waiting: deque[int] = deque()
        """Sizes of messages for the application."""
        self._waiting_bytes = 0
        self._began_s: float | None = None
        """Start of an incomplete message."""
        self._late: asyncio.TimerHandle | None = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writing.stop()
        self._stop_waiting()
        self._held.release()
        super().connection_lost(exc)

    def get_buffer(self, sizehint: int) -> bytearray:
        self._received = bytearray(_READ_BYTES)
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        data, self._received = self._received[:nbytes], bytearray()
        self.data_received(bytes(data))

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # the libraries' own, of input that they did not expect
            self._drop(f"not readable as a WebSocket ({type(error).__name__})")
            return
        if not self.handshake_initiated:
            self._drop("not a handshake of a WebSocket")
        else:
            self._count()

    def _drop(self, what: str) -> None:
        self.limits.complaints.note(self.client, what)
        if not self.handshake_initiated:
            self.transport.write(_BAD_HANDSHAKE)
            self.transport.close()
        else:
            self.transport.abort()

    def handle_ping(self) -> None:
        """Drop the pong if the client does not read: only the last is owed (RFC 6455, 5.5.3)."""
        if self.writable.is_set() and not self.transport.is_closing():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    # -- messages ----------------------------------------------------------------------------------

    def handle_text(self, event: Frame) -> None:
        self.curr_msg_data_type = "text"
        self.handle_cont(event)

    def handle_bytes(self, event: Frame) -> None:
        self.curr_msg_data_type = "bytes"
        self.handle_cont(event)

    def handle_cont(self, event: Frame) -> None:
        """Join fragments as they come, because a list of them takes many times their bytes."""
        if self.close_sent:
            return
        if event.fin:
            self._stop_waiting()
            whole, self._message, self._num_fragments = self._message, bytearray(), 0
            self.frames = [bytes(whole + event.data) if whole else bytes(event.data)]
            self.send_receive_event_to_app()
            return
        self._message += event.data
        self._num_fragments += 1
        if self._num_fragments > _MAX_FRAGMENTS:
            self._fail(CloseCode.POLICY_VIOLATION, f"a message has more than {_MAX_FRAGMENTS} pieces")

    def send_receive_event_to_app(self) -> None:
        (data,) = self.frames
        try:
            if self.curr_msg_data_type == "text":
                data.decode()
        except UnicodeDecodeError:
            self.frames = []
            self._fail(CloseCode.INVALID_DATA, "a text is not UTF-8")
            return
        self._waiting.append(len(data))
        self._waiting_bytes += len(data)
        super().send_receive_event_to_app()

    async def receive(self) -> ASGIReceiveEvent:
        await asyncio.sleep(0)  # many messages may wait, and other connections get their turn between them
        message = await super().receive()
        if message["type"] == "websocket.receive":
            self._waiting_bytes -= self._waiting.popleft()
            self._count()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # uvicorn would log the refusal as an error of the application

    def _count(self) -> None:
        if self.disconnected or self.close_sent:
            return
        unfinished = self._unfinished_bytes()
        if not self._held.holds(unfinished + self._waiting_bytes):
            self._fail(CloseCode.TRY_AGAIN_LATER, "the server is reading too many large messages")
        elif not self._num_fragments and not self.conn.reader.buffer:
            self._stop_waiting()
        elif self._began_s is None:
            self._began_s = self.loop.time()
            self._late = self.loop.call_later(self.limits.read_timeout_s, self._check_time)

    def _unfinished_bytes(self) -> int:
        return len(self._message) + len(self.conn.reader.buffer)

    def _check_time(self) -> None:
        """Excuse messages while reading is paused, because the application takes none."""
        assert self._began_s is not None
        now_s = self.loop.time()
        if self.read_paused:
            self._began_s = now_s
        due_s = self._began_s + self.limits.read_timeout_s + self._unfinished_bytes() / BYTES_PER_S
        if now_s < due_s:
            self._late = self.loop.call_at(due_s, self._check_time)
        else:
            self._fail(CloseCode.POLICY_VIOLATION, "a message took too long to arrive")

    def _stop_waiting(self) -> None:
        self._began_s = None
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _fail(self, code: CloseCode, reason: str) -> None:
        self._stop_waiting()
        self.limits.complaints.note(self.client, f"WebSocket: {reason}")
        self.conn.fail(code, reason)
        if self.conn.close_sent is None:  # it was not accepted yet
            self.transport.abort()
        else:
            self.handle_parser_exception()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing.start(self.limits.write_timeout_s, self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing.stop()
