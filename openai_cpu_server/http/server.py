"""`LimitedConnection` overrides uvicorn's internals: look here first when these change."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from http import HTTPStatus
from types import FrameType
from typing import ClassVar, Protocol

import httptools
import msgspec
import uvicorn
from uvicorn._types import ASGI3Application, ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from openai_cpu_server.http.body import BodyQuota

logger = logging.getLogger(__name__)

_RESERVE = 128
"""Files for libraries, sockets, databases, uploads, and rejected connections."""


def room_for_connections(wanted: int) -> int:
    """Raise the soft limit of open files, and return what is possible."""
    needed, (files, hard) = wanted + _RESERVE, resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit below the hard one
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            files = raised
    if files == resource.RLIM_INFINITY or files >= needed:
        return wanted
    possible = max(1, files - _RESERVE)
    logger.warning(
        "at most %d connections instead of the %d of --max-connections: the system limits this process "
        "to %d open files (see ulimit -Hn)",
        possible,
        wanted,
        files,
    )
    return possible


_MOST_PENDING = 1024
"""Kernel's queue for `accept`."""
ACCEPTED_AT_ONCE = 8
"""Connections per turn of the event loop, for which running streams wait."""


class Listener(uvicorn.Server):
    """Accepts in small groups, so `config.backlog` must be `ACCEPTED_AT_ONCE`: asyncio takes one number for
    group and kernel queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_MOST_PENDING)


class Engines(Protocol):
    def requests(self) -> Sequence[object]: ...

    async def drain(self, seconds: float) -> None: ...

    async def close(self) -> None: ...

    def kill(self) -> None: ...


class WebServer(Listener):
    """uvicorn with other meanings of signals: the first drains for `drain_s` and calls `checkpoint`, the
    second ends running requests at once, the third skips the delivery of last bytes. The process exits with
    0."""

    def __init__(
        self,
        config: uvicorn.Config,
        engines: Engines,
        *,
        drain_s: float,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(config)
        self._engines = engines
        self._drain_s = drain_s
        self._checkpoint = checkpoint
        self._num_signals = 0
        self._draining: asyncio.Task[None] | None = None

    def stop_if_failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Record the signal alone, inside its handler; `on_tick` and `shutdown` act."""
        self._num_signals += 1
        if self._num_signals > 1:
            self.should_exit = True
            asyncio.get_running_loop().call_soon_threadsafe(self._engines.kill)
        self.force_exit = self._num_signals > 2

    async def on_tick(self, counter: int) -> bool:
        if self._num_signals and self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        return await super().on_tick(counter)

    async def _drain(self) -> None:
        logger.info(
            "draining: running requests (%d) have %g s to end; another signal ends them at once",
            len(self._engines.requests()),
            self._drain_s,
        )
        try:
            await asyncio.gather(self._engines.drain(self._drain_s), self._checkpoint())
        except Exception:
            logger.exception("draining failed")
        finally:
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._draining is not None:
            self._draining.cancel()
        await self._engines.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_INTERVAL_S = 10.0


class Complaints:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = clock()
        self._num_not_logged = 0

    def note(self, client: tuple[str, int] | None, what: str) -> None:
        """Log one line per interval, with the number of complaints since the last."""
        self._num_not_logged += 1
        now_s = self._clock()
        if now_s < self._next_s:
            return
        count, self._num_not_logged, self._next_s = self._num_not_logged, 0, now_s + _INTERVAL_S
        logger.warning("malformed requests: %d; the last, from %s: %s", count, client and client[0], what)


class Hangup:
    """SIGHUP handler, created early in the main thread so that no signal is lost."""

    def __init__(self) -> None:
        self._has_come = False

        def note(number: int, frame: FrameType | None) -> None:
            self._has_come = True

        signal.signal(signal.SIGHUP, note)

    def call(self, action: Callable[[], None]) -> None:
        """Call `action` at each signal, and at once if one has come."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
        if self._has_come:
            action()


_MAX_HEADER_BYTES = 64 * 1024
_MAX_FIELDS = 256
"""Headers and trailers together; the bytes include the URL."""
_MAX_WAITING = 8
"""Pipelined requests behind the current one."""
_LINGER_S = 2.0
EXCESS_CONNECTION = "excess_connection"
_EXCESS_READ_S = 2.0
"""A connection beyond the limit may send its request, which is rejected."""
_UNSENT_BYTES = 128 * 1024
"""Bytes that the kernel accepts before the client has room."""
_NOT_SENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_connections: int
    read_timeout_s: float
    """Time for headers, from the start of the connection or the first byte."""
    write_timeout_s: float
    """Time after which a client that does not read is dropped."""
    messages: Callable[[], BodyQuota]
    complaints: Complaints


class _HttpError(msgspec.Struct, frozen=True):
    status: int
    message: str
    code: str


_MALFORMED = _HttpError(400, "Invalid HTTP request received.", "invalid_http")
_TOO_LARGE = _HttpError(431, "The request's headers are too large.", "headers_too_large")


class _TooLarge(Exception):
    pass


class _Full(Exception):
    """Too many requests wait."""


class Timer:
    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._handle is not None

    def start(self, seconds: float, transport: asyncio.Transport) -> None:
        self.stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class LimitedConnection(HttpToolsProtocol):
    """Times incoming headers, and a client that does not read."""

    limits: ClassVar[ConnectionLimits]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._reading = Timer()
        self._writing = Timer()
        self._has_head = False
        self._drops_upgrade = False
        self._is_over = False
        self._refusal = _MALFORMED
        self._field_bytes = self._num_fields = 0
        self._silent_bytes = 0
        """Bytes that the parser has buffered since its last callback."""
        self._answered: RequestResponseCycle | None = None
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if _NOT_SENT_LOWAT is not None and sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _NOT_SENT_LOWAT, _UNSENT_BYTES)
        read_s = self.limits.read_timeout_s
        if len(self.connections) > self.limits.max_connections:
            self.app_state = {**self.app_state, EXCESS_CONNECTION: True}
            read_s = min(read_s, _EXCESS_READ_S)
        self._reading.start(read_s, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading.stop()
        self._writing.stop()
        self.pipeline.clear()
        if self._answered is not None:
            _disconnect(self._answered)  # uvicorn disconnects only the latest request
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        self._unset_keepalive_if_required()
        if not (self._reading.is_running or self._is_answering()):
            self._reading.start(self.limits.read_timeout_s, self.transport)
        self._silent_bytes += len(data)
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as stop:
                    data = self._switched(data[stop.args[0] :])
            if self._silent_bytes > _MAX_HEADER_BYTES:
                self._refuse(_TOO_LARGE)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _Full):
                self._is_over = True
                self.cycle.keep_alive = False
                self.limits.complaints.note(self.client, "too many requests wait on one connection")
            else:
                self._refuse(self._refusal)

    def _switched(self, rest: bytes) -> bytes:
        """Return the rest to parse as HTTP, because a server may ignore an Upgrade (RFC 9110, 7.8)."""
        if self._should_upgrade():
            self._open_socket()
            protocol = self.transport.get_protocol()
            if rest and protocol is not self:
                protocol.data_received(rest)  # type: ignore[attr-defined]
            return b""
        if not self._drops_upgrade:
            return b""  # CONNECT, which has been refused
        head = [
            b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        head += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        self._drops_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return b"\r\n".join((*head, b"", rest))

    def _should_upgrade(self) -> bool:
        """HTTP/1.0 has no Upgrade (RFC 9110, 7.8)."""
        is_get = self.parser.get_method() == b"GET" and self.parser.get_http_version() != "1.0"
        return is_get and super()._should_upgrade()

    def _open_socket(self) -> None:
        """uvicorn's WebSocket code needs ASCII. A client with a pending response cannot upgrade."""
        read = [value for name, value in self.headers if name.startswith(b"sec-websocket-")]
        if self._is_answering() or not all(map(bytes.isascii, (self.url, *read))):
            self._refuse(_MALFORMED)
        else:
            self.handle_websocket_upgrade()

    # -- callbacks of the parser -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._silent_bytes = 0
        self._has_head = False
        self._field_bytes = self._num_fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_field(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are counted and dropped, because uvicorn would keep them."""
        self._num_fields += 1
        self._count_field(len(name) + len(value))
        if not self._has_head:
            super().on_header(name, value)

    def _count_field(self, num_bytes: int) -> None:
        self._silent_bytes = 0
        self._field_bytes += num_bytes
        if self._field_bytes > _MAX_HEADER_BYTES or self._num_fields > _MAX_FIELDS:
            self._refusal = _TOO_LARGE
            raise _TooLarge

    def on_headers_complete(self) -> None:
        self._silent_bytes = 0
        # CONNECT switches to another protocol without an Upgrade.
        is_connect = self.parser.get_method() == b"CONNECT"
        if self.parser.should_upgrade() and not is_connect and not self._should_upgrade():
            self._drops_upgrade = True
            return
        if self._is_answering() and len(self.pipeline) >= _MAX_WAITING:
            raise _Full
        self._reading.stop()
        super().on_headers_complete()
        self._has_head = True
        if self.parser.get_http_version() == "1.0":
            _send_unchunked(self.cycle)

    def on_chunk_header(self) -> None:
        self._silent_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent_bytes = 0
        self._has_head = False
        if not self._drops_upgrade:
            super().on_message_complete()

    # -- responses, and their ends -----------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._writing.start(self.limits.write_timeout_s, self.transport)

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

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: _HttpError) -> None:
        """Reject a request that the application sees at most in part, and close."""
        self.limits.complaints.note(self.client, problem.message)
        self._is_over = True
        if self._is_answering() and not self._has_head:  # an earlier request gets its answer
            self.cycle.keep_alive = False
        elif self._is_answering() and (self.pipeline or self.cycle.response_started):
            self.transport.abort()
        else:
            is_answered = self._has_head and self.cycle.response_complete
            if not is_answered:
                self._answer(problem)
            # Closing at once would reset the connection before the client sees the response.
            if self.transport.can_write_eof():
                self.transport.write_eof()
                self._reading.start(_LINGER_S, self.transport)
            else:
                self.transport.close()
                self._writing.start(self.limits.write_timeout_s, self.transport)

    def _answer(self, problem: _HttpError) -> None:
        if self.cycle is not None:
            _disconnect(self.cycle)
        error = {
            "message": problem.message,
            "type": "invalid_request_error",
            "param": None,
            "code": problem.code,
        }
        body = json.dumps({"error": error}).encode()
        head = (
            b"HTTP/1.1 %d %b" % (problem.status, HTTPStatus(problem.status).phrase.encode()),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"connection: close",
        )
        self.transport.write(b"\r\n".join((*head, b"", body)))


def limited(protocol: type[asyncio.Protocol], limits: ConnectionLimits) -> type[asyncio.Protocol]:
    return type(protocol.__name__, (protocol,), {"limits": limits})


def _send_unchunked(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 has no chunks (RFC 9112, 6.1), but uvicorn would send them."""
    send, is_counted = cycle.send, False

    async def unchunked(message: ASGISendEvent) -> None:
        nonlocal is_counted
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            is_counted = b"content-length" in names
            if not is_counted:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and not is_counted:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = unchunked  # type: ignore[method-assign]


def _disconnect(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True
    cycle.message_event.set()
