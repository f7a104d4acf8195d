"""Event streams that go on for a while without their clients, for clients that name a conversation.
Responses in the background have the same kind of log."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import anyio
import msgspec

from openai_cpu_server.api.generation.renderer import Chunk, Renderer, events
from openai_cpu_server.api.generation.running import RunningCall, chunks_of
from openai_cpu_server.errors import InvalidRequest, RequestNotFound, RequestsLimited, wrong_value
from openai_cpu_server.http.context import RequestHistory, RequestLog
from openai_cpu_server.http.errors import error_object, failure_of
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.observe.metrics import StreamAmounts

CONVERSATION_HEADER = "X-Conversation-Id"
"""llama-server's header with the client's name of the conversation."""
LAST_EVENT_HEADER = "Last-Event-ID"
_SANE_NAME = re.compile(r"[!-~]{1,256}")


def conversation_of(headers: Mapping[str, str]) -> str | None:
    """Return None if the stream ends with its connection. Raises InvalidRequest for an invalid name."""
    name = headers.get(CONVERSATION_HEADER) or None
    if name is not None and not _SANE_NAME.fullmatch(name):
        raise wrong_value(CONVERSATION_HEADER, "1 to 256 characters without blanks")
    return name


class EventLog:
    """Events of one stream, numbered from 0. With a limit the oldest are dropped."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._events: deque[bytes] = deque()
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._dropped_bytes = 0
        self._news = anyio.Event()
        self.first = 0
        self.has_ended = False

    @property
    def events(self) -> Sequence[bytes]:
        return self._events

    @property
    def end_number(self) -> int:
        return self.first + len(self._events)

    @property
    def held_bytes(self) -> int:
        return self._num_bytes

    @property
    def total_bytes(self) -> int:
        return self._dropped_bytes + self._num_bytes

    def add(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.append(events([chunk]))

    def append(self, event: bytes) -> None:
        self._events.append(event)
        self._num_bytes += len(event)
        while self._most_bytes is not None and self._num_bytes > self._most_bytes:
            self.drop()
        self._wake()

    def drop(self) -> None:
        num_bytes = len(self._events.popleft())
        self._num_bytes -= num_bytes
        self._dropped_bytes += num_bytes
        self.first += 1

    def end(self) -> None:
        self.has_ended = True
        self._wake()

    async def ended(self) -> None:
        while not self.has_ended:
            await self._news.wait()

    async def read(self, number: int) -> AsyncIterator[bytes]:
        """Yield all events from this number to the last, or until one that was dropped."""
        while True:
            while self.first <= number < self.end_number:
                yield self._events[number - self.first]
                number += 1
            if self.has_ended or number < self.first:
                return
            await self._news.wait()

    async def read_bytes(self, start: int) -> AsyncIterator[bytes]:
        """Yield the rest from this byte, as llama-server's clients count."""
        number, at = self.first, self._dropped_bytes
        while number < self.end_number and at + len(self._events[number - self.first]) <= start:
            at += len(self._events[number - self.first])
            number += 1
        skipped = start - at
        async for event in self.read(number):
            yield event[skipped:]
            skipped = 0

    def has_byte(self, start: int) -> bool:
        return self._dropped_bytes <= start <= self.total_bytes

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


class ResumableStream:
    def __init__(self, conversation: str, owner: str, running: RunningCall, renderer: Renderer) -> None:
        self.conversation = conversation
        self.owner = owner
        self.running = running
        self.headers = {**running.call.headers, CONVERSATION_HEADER.lower(): conversation}
        self.started_at = int(time.time())
        self.ended_at = 0
        self.log = EventLog(_MOST_BYTES)
        self.num_readers = 0
        self.timer: asyncio.TimerHandle | None = None
        self._renderer = renderer

    async def make(self, ticket: RequestLog) -> None:
        """Run the call to its end, with or without readers. Failures go into the log."""
        renderer = self._renderer
        try:
            async with self.running as running:
                async for said in running.tell(renderer):
                    self._tell(chunks_of(said, renderer))
            if (done_marker := renderer.done_marker) is not None:
                self._tell([Chunk(done_marker)])
            ticket.status = 200
        except Exception as error:
            ticket.failed(error)
            ticket.status = failure_of(error).status
            self._tell(renderer.error(error_object(error, request_id=ticket.id)))

    def end(self) -> None:
        self.ended_at = int(time.time())
        self.log.end()

    def _tell(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.log.append(b"id: %d\n%b" % (self.log.end_number, events([chunk])))

    def number_behind(self, last_event: str | None) -> int:
        """Return the number of the next event. Raises InvalidRequest for an unknown or dropped one."""
        if last_event is None or last_event == "":
            number = 0
        elif last_event.isascii() and last_event.isdecimal() and len(last_event) < 10:
            number = int(last_event) + 1
        else:
            raise wrong_value(LAST_EVENT_HEADER, "the id of an event")
        if not self.log.first <= number <= self.log.end_number:
            raise events_lost(LAST_EVENT_HEADER)
        return number


def events_lost(param: str) -> InvalidRequest:
    message = f"What stands behind '{param}' is not kept (any more): ask for the answer anew."
    return InvalidRequest(message, param=param, code="events_lost")


class StreamState(msgspec.Struct, frozen=True):
    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    """Unix time."""
    completed_at: int
    """Unix time, or 0 while the stream runs."""

    @classmethod
    def of(cls, kept: ResumableStream) -> StreamState:
        log = kept.log
        return cls(kept.conversation, log.has_ended, log.total_bytes, kept.started_at, kept.ended_at)


_MOST_BYTES = 4 * 1024 * 1024
"""Limit of one stream as in llama-server, about 15,000 tokens of a chat."""
_MOST_BYTES_TOGETHER = 128 * 1024 * 1024
_MOST_STREAMS = 32
_CLOSE_S = 5.0


class ResumableStreams:
    """Streams by owner and conversation. Call `close` when the engines have ended."""

    def __init__(self, endings: RequestHistory, *, keep_s: float) -> None:
        """`keep_s`: time without a reader and after the end, or 0 to keep no stream."""
        self._endings = endings
        self.keep_s = keep_s
        self._streams: dict[tuple[str, str], ResumableStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, conversation: str, identity: Identity) -> None:
        """Check for room for a new stream of this key. Raises RequestsLimited."""
        owner = _owner(identity)
        others = [one for one in self._of(owner) if one.conversation != conversation]
        if len(others) >= _MOST_STREAMS and not any(one.log.has_ended for one in others):
            limit = f"streams that are kept for one key: Limit {_MOST_STREAMS}"
            raise RequestsLimited(limit, retry_after_s=1.0)

    def begin(
        self,
        conversation: str,
        identity: Identity,
        running: RunningCall,
        renderer: Renderer,
        *,
        ticket: RequestLog,
        lease: Reservation | None,
    ) -> ResumableStream:
        """Start a stream in place of the conversation's former one. The stream owns `ticket` and `lease`."""
        owner = _owner(identity)
        if (former := self._streams.get((owner, conversation))) is not None:
            self.forget(former)
        ended = [one for one in self._of(owner) if one.log.has_ended]
        if len(self._of(owner)) >= _MOST_STREAMS and ended:
            self.forget(ended[0])
        kept = ResumableStream(conversation, owner, running, renderer)
        self._streams[owner, conversation] = kept
        self._leave_alone(kept)
        if lease is not None:
            lease.keep()
        task = asyncio.create_task(self._see_through(kept, ticket, lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return kept

    def find(self, name: str, identity: Identity) -> ResumableStream:
        """Return the stream of a conversation, or of an id in its chunks. Raises RequestNotFound."""
        for kept in self._of(_owner(identity)):
            if name in (kept.conversation, *kept.running.names):
                return kept
        raise RequestNotFound(name)

    def amounts(self) -> StreamAmounts:
        logs = [one.log for one in self._streams.values()]
        num_ended = sum(log.has_ended for log in logs)
        return StreamAmounts(len(logs) - num_ended, num_ended, sum(log.held_bytes for log in logs))

    def states(self, names: Sequence[str], identity: Identity) -> list[StreamState]:
        """Return these conversations' streams, also those with a model behind (`NAME::MODEL`)."""
        kept = self._of(_owner(identity))
        return [
            StreamState.of(one)
            for name in names
            for one in kept
            if one.conversation == name or one.conversation.startswith(f"{name}::")
        ]

    def forget(self, kept: ResumableStream) -> None:
        """Remove a stream, and cancel its call so that readers get an error."""
        if self._streams.get((kept.owner, kept.conversation)) is kept:
            del self._streams[kept.owner, kept.conversation]
        if kept.timer is not None:
            kept.timer.cancel()
        if not kept.log.has_ended:
            kept.running.cancel()

    @contextlib.contextmanager
    def reading(self, kept: ResumableStream) -> Iterator[None]:
        """Keep the stream alive while a client reads."""
        kept.num_readers += 1
        if kept.timer is not None and not kept.log.has_ended:
            kept.timer.cancel()
        try:
            yield
        finally:
            kept.num_readers -= 1
            if not kept.num_readers and not kept.log.has_ended:
                self._leave_alone(kept)

    async def close(self) -> None:
        for kept in self._streams.values():
            if kept.timer is not None:
                kept.timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    async def _see_through(
        self, kept: ResumableStream, ticket: RequestLog, lease: Reservation | None
    ) -> None:
        try:
            await kept.make(ticket)
        finally:
            if lease is not None:
                await lease.end()
            self._endings.end(ticket)
            kept.end()
            if self._streams.get((kept.owner, kept.conversation)) is kept:
                self._leave_alone(kept)
                self._make_room()

    def _leave_alone(self, kept: ResumableStream) -> None:
        """Forget the stream after `keep_s`, unless it still runs and a client reads."""
        if kept.timer is not None:
            kept.timer.cancel()
        kept.timer = asyncio.get_running_loop().call_later(self.keep_s, self.forget, kept)

    def _make_room(self) -> None:
        held = self.amounts().num_bytes
        ended = sorted((one for one in self._streams.values() if one.log.has_ended), key=_ended_at)
        for one in ended:
            if held <= _MOST_BYTES_TOGETHER:
                return
            held -= one.log.held_bytes
            self.forget(one)

    def _of(self, owner: str) -> list[ResumableStream]:
        return [one for one in self._streams.values() if one.owner == owner]


def _ended_at(kept: ResumableStream) -> int:
    return kept.ended_at


def _owner(identity: Identity) -> str:
    """Identify streams by key. Without keys the conversation's name is enough."""
    return identity.digest or ""
