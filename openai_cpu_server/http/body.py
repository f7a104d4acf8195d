from __future__ import annotations

import contextlib
import enum
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TypeVar

import anyio
from anyio.lowlevel import RunVar
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from openai_cpu_server import errors
from openai_cpu_server.contract.caller import CALLER
from openai_cpu_server.fairness import FairQueue

T = TypeVar("T")

_THREADS_FOR_OTHERS = 2
INLINE_BYTES = 2048
"""Size that is parsed, rendered and tokenised within a millisecond; a thread costs 0.2 ms."""

_LARGE_BYTES = 64 * 1024
_HUGE_BYTES = 4 * 1024 * 1024


class ThreadLane:
    """Clients take turns, and each leaves some threads to others."""

    def __init__(self, num_threads: int) -> None:
        self._num_free = num_threads
        self._threads = anyio.CapacityLimiter(num_threads)
        self._queue: FairQueue[anyio.Event] = FairQueue(max(1, num_threads - _THREADS_FOR_OTHERS))

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        caller, ticket = CALLER.get(), anyio.Event()
        self._queue.add(caller, ticket)
        self._grant()
        try:
            await ticket.wait()
        except BaseException:
            if not ticket.is_set():
                self._queue.remove(caller, ticket)
            else:
                self._give_back(caller, 0.0)
            raise
        start_s = time.monotonic()
        try:
            return await anyio.to_thread.run_sync(
                work, limiter=self._threads, abandon_on_cancel=abandon_on_cancel
            )
        finally:
            self._give_back(caller, time.monotonic() - start_s)

    def _grant(self) -> None:
        while self._num_free and (ticket := self._queue.take()) is not None:
            self._num_free -= 1
            ticket.set()

    def _give_back(self, caller: tuple[str, ...], used_s: float) -> None:
        self._queue.give_back(caller, used_s)
        self._num_free += 1
        self._grant()


class ThreadKind(enum.Enum):
    QUICK = 40
    SLOW = 8
    """A schema can take a second. Each holds the interpreter's lock for 5 ms against the event loop."""
    LARGE = 3
    """Parsing above `_LARGE_BYTES` holds the interpreter's lock for milliseconds."""
    HUGE = 1
    """Parsing above `_HUGE_BYTES` holds it for tens of milliseconds."""
    DOCUMENT = 4
    """A document may compute for ten seconds, while schemas and pictures need the slow threads."""
    FETCH = 16


_lanes: RunVar[dict[ThreadKind, ThreadLane]] = RunVar("thread_lanes")


async def off_loop(num_bytes: int, work: Callable[[], T]) -> T:
    """Run work that never waits, inline for a small body. Raises NativePanic."""
    if num_bytes <= INLINE_BYTES:
        return _contained(work)
    sizes = {ThreadKind.HUGE: _HUGE_BYTES, ThreadKind.LARGE: _LARGE_BYTES}
    kind = next((kind for kind, least in sizes.items() if num_bytes > least), ThreadKind.QUICK)
    return await thread_lane(kind).run(partial(_contained, work))


async def in_thread(work: Callable[[], T], *, is_slow: bool = False, kind: ThreadKind | None = None) -> T:
    """Run work that may wait for a reader. Raises NativePanic."""
    kind = kind or (ThreadKind.SLOW if is_slow else ThreadKind.QUICK)
    return await thread_lane(kind).run(partial(_contained, work))


def thread_lane(kind: ThreadKind) -> ThreadLane:
    lanes = _lanes.get(None)
    if lanes is None:
        lanes = {each: ThreadLane(each.value) for each in ThreadKind}
        _lanes.set(lanes)
    return lanes[kind]


def _contained(work: Callable[[], T]) -> T:
    """Rust panics arrive as a BaseException, which would end the server."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as panic:
        raise errors.NativePanic from panic


FREE_BYTES = 64 * 1024
"""Slow senders of large bodies do not block ordinary requests."""
MOST_SMALL_BYTES = 64 * 1024
BYTES_PER_S = 1024
"""A body or WebSocket message gets one more second per this many bytes."""
_DRAINED_BYTES, _DRAIN_S = 8 * 1024 * 1024, 2.0


@dataclass
class BodyBudget:
    max_bytes: int
    used_bytes: int = 0

    def change(self, num_bytes: int) -> bool:
        """Negative frees memory. Return False if there is too little."""
        if num_bytes > 0 and self.used_bytes + num_bytes > self.max_bytes:
            return False
        self.used_bytes += num_bytes
        assert self.used_bytes >= 0, "freed twice"
        return True


@dataclass
class BodyQuota:
    """Memory of one body, or of a WebSocket's messages. Bytes beyond `most_bytes` are on disk."""

    budget: BodyBudget
    most_bytes: int
    charged_bytes: int = 0

    def has_grown(self, received_bytes: int) -> None:
        """Charge for a larger body. Raises BodiesFull."""
        if self._due(received_bytes) > self.charged_bytes and not self.holds(received_bytes):
            raise errors.BodiesFull

    def holds(self, num_bytes: int) -> bool:
        """Return False beyond the budget."""
        due = self._due(num_bytes)
        if not self.budget.change(due - self.charged_bytes):
            return False
        self.charged_bytes = due
        return True

    def release(self) -> None:
        self.budget.change(-self.charged_bytes)
        self.charged_bytes = 0

    def _due(self, num_bytes: int) -> int:
        return max(0, min(num_bytes, self.most_bytes) - FREE_BYTES)


async def check_announced(scope: Scope, receive: Receive, max_bytes: int) -> None:
    """Check before the request counts against its key's limits. Raises BodyTooLarge."""
    text = Headers(scope=scope).get("content-length", "")
    num_bytes = int(text) if text.isdecimal() and len(text) < 20 else 0
    if num_bytes <= max_bytes:
        return
    if num_bytes - max_bytes <= _DRAINED_BYTES:
        await _drain(receive)
    raise errors.BodyTooLarge(max_bytes)


async def _drain(receive: Receive) -> None:
    """Keep a sending client from a reset instead of the response."""
    with anyio.move_on_after(_DRAIN_S):
        while (await receive()).get("more_body", False):
            pass


async def small_body(request: Request) -> bytes:
    """Limit the body to `MOST_SMALL_BYTES`. Raises BodyTooLarge."""
    received = bytearray()
    async for piece in request.stream():
        received += piece
        if len(received) > MOST_SMALL_BYTES:
            await _drain(request.receive)
            raise errors.BodyTooLarge(MOST_SMALL_BYTES)
    return bytes(received)


async def streamed_body(request: Request) -> bytes:
    """Avoid a copy: joining 20 MB can block the event loop for 0.1 s."""
    received = BytesIO()
    async for piece in request.stream():
        received.write(piece)
    return received.getvalue()  # without a copy, as CPython has it


@contextlib.asynccontextmanager
async def form_of(request: Request, *, most_fields: int) -> AsyncIterator[FormData]:
    """Read a form with at most one file. Raises InvalidRequest, also for a `charset` other than UTF-8,
    because some of Python's codecs fail differently."""
    kind, parameters = parse_options_header(request.headers.get("content-type", ""))
    if kind.lower() != b"multipart/form-data":
        raise errors.InvalidRequest("The request body must be a form (multipart/form-data).")
    if parameters.get(b"charset", b"").lower() not in (b"", b"utf-8", b"utf8", b"us-ascii"):
        raise errors.InvalidRequest("A form must be UTF-8: its Content-Type cannot name another 'charset'.")
    try:
        form = await request.form(max_files=1, max_fields=most_fields)
    except HTTPException as error:
        raise errors.InvalidRequest(f"The form cannot be read: {error.detail.rstrip('.')}.") from None
    try:
        yield form
    finally:
        await form.close()


def paced(receive: Receive, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> Receive:
    """Return a `receive` that raises BodyTooSlow until the body is complete, then waits forever."""
    ends_s = clock() + timeout_s
    is_whole = False

    async def in_time() -> Message:
        nonlocal ends_s, is_whole
        if is_whole:
            return await receive()
        try:
            with anyio.fail_after(max(0.0, ends_s - clock())):
                message = await receive()
        except TimeoutError:
            raise errors.BodyTooSlow from None
        ends_s += len(message.get("body", b"")) / BYTES_PER_S
        is_whole = not message.get("more_body", False)
        return message

    return in_time


_PLAIN, _COMPRESSED = ("", "identity"), ("gzip", "x-gzip", "deflate")
_EITHER_HEADER = 32 + zlib.MAX_WBITS
"""Gzip and zlib; `deflate` is the zlib format (RFC 9110, 8.4.1.2)."""
_MOST_MEMBERS = 256
"""Concatenated compressed bodies, each of which costs a copy of what follows."""
_INFLATED_AT_ONCE = 128 * 1024
"""Takes half a millisecond."""


def inflated(scope: Scope, receive: Receive) -> Receive:
    """Return a decompressing `receive`. Raises EncodingNotSupported."""
    encoding = ", ".join(Headers(scope=scope).getlist("content-encoding")).strip().lower()
    if encoding in _PLAIN:
        return receive
    if encoding not in _COMPRESSED:
        raise errors.EncodingNotSupported(encoding)
    return _InflatedBody(receive)


class _InflatedBody:
    """Reads one piece at a time, so that a limit on pieces bounds the work."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._member = zlib.decompressobj(_EITHER_HEADER)
        self._num_members = 1
        self._input = b""
        self._is_last = False
        self._is_empty = True
        self._has_more = False
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        if self._has_more:
            await anyio.lowlevel.checkpoint()  # a small body can become a large one: others get their turn
        while not (self._input or self._has_more or self._is_last):
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            self._input, self._is_last = message.get("body", b""), not message.get("more_body", False)
            self._is_empty = self._is_empty and not self._input
        piece = self._piece()
        self._is_whole = self._is_last and not self._has_more
        return {"type": "http.request", "body": piece, "more_body": not self._is_whole}

    def _piece(self) -> bytes:
        piece = None
        with contextlib.suppress(zlib.error):
            piece = self._member.decompress(self._input, _INFLATED_AT_ONCE)
            self._input = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof and self._input:  # several may follow each other (RFC 1952, 2.2)
                self._member = zlib.decompressobj(_EITHER_HEADER)
                self._num_members += 1
            self._has_more = bool(self._input) or len(piece) == _INFLATED_AT_ONCE
        is_cut = self._is_last and not (self._has_more or self._member.eof or self._is_empty)
        if piece is None or is_cut or self._num_members > _MOST_MEMBERS:
            message = "The body does not match its Content-Encoding."
            raise errors.InvalidRequest(message, code="invalid_encoding")
        return piece
