"""Event streams that go on for a while without their clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from openai_cpu_server.api.generation.event_log import EventLog
from openai_cpu_server.api.generation.renderer import Renderer, events
from openai_cpu_server.api.generation.running import AnswerStream, RunningCall, StreamItem, chunks_of
from openai_cpu_server.errors import InvalidRequest, RequestNotFound, RequestsLimited, wrong_value
from openai_cpu_server.http.context import RequestHistory
from openai_cpu_server.http.errors import failure_of
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.observe.metrics import StreamAmounts

CONVERSATION_HEADER = "X-Conversation-Id"
"""llama-server's header with the client's name of the conversation."""
LAST_EVENT_HEADER = "Last-Event-ID"


@dataclass(eq=False)
class ResumableStream:
    """Owner of its call's log entry and reservation."""

    conversation: str
    owner: str
    running: RunningCall
    renderer: Renderer
    reservation: Reservation
    log: EventLog = field(default_factory=lambda: EventLog(_MOST_BYTES))
    started_at: int = field(default_factory=lambda: int(time.time()))
    ended_at: int = 0
    num_readers: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {**self.running.call.headers, CONVERSATION_HEADER.lower(): self.conversation}

    async def run(self) -> None:
        """Run the call to its end, with or without readers. Failures go into the log."""
        request_log = self.running.request_log
        stream = AnswerStream(self._items(), self.renderer, request_log)
        async for item in stream:
            for chunk in chunks_of(item, self.renderer):
                self.log.append(b"id: %d\n%b" % (self.log.end_number, events([chunk])))
        request_log.status = 200 if stream.error is None else failure_of(stream.error).status

    async def _items(self) -> AsyncIterator[StreamItem]:
        async with self.running as running:
            async for item in running.emit(self.renderer):
                yield item

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
    message = f"The stream after '{param}' is no longer stored. Send the original request again."
    return InvalidRequest(message, param=param, code="events_lost")


class StreamState(msgspec.Struct, frozen=True):
    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    """Unix time."""
    completed_at: int
    """Unix time, or 0 while the stream runs."""


_MOST_BYTES = 4 * 1024 * 1024
"""Limit of one stream as in llama-server, about 15,000 tokens of a chat."""
_MOST_BYTES_TOGETHER = 128 * 1024 * 1024
_MOST_STREAMS = 32
_CLOSE_S = 5.0


class ResumableStreams:
    """Streams by id. The owner calls `close` when the engines have ended."""

    def __init__(self, history: RequestHistory, *, keep_s: float) -> None:
        """`keep_s`: time without a reader and after the end, or 0 to keep no stream."""
        self._history = history
        self.keep_s = keep_s
        self._streams: dict[tuple[str, str], ResumableStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, conversation: str, identity: Identity) -> None:
        """Check for room for a new stream of this key. Raises RequestsLimited."""
        owner = stream_owner(identity)
        others = [one for one in self._of(owner) if one.conversation != conversation]
        if len(others) >= _MOST_STREAMS and not any(one.log.has_ended for one in others):
            limit = f"streams that are kept for one key: Limit {_MOST_STREAMS}"
            raise RequestsLimited(limit, retry_after_s=1.0)

    def begin(self, stream: ResumableStream) -> None:
        """Start a stream in place of the conversation's former one."""
        owner, conversation = stream.owner, stream.conversation
        if (former := self._streams.get((owner, conversation))) is not None:
            self.forget(former)
        ended = [one for one in self._of(owner) if one.log.has_ended]
        if len(self._of(owner)) >= _MOST_STREAMS and ended:
            self.forget(ended[0])
        self._streams[owner, conversation] = stream
        self._forget_later(stream)
        stream.reservation.keep()
        task = asyncio.create_task(self._see_through(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def find(self, name: str, identity: Identity) -> ResumableStream:
        """Return the stream of a conversation, or of an id in its chunks. Raises RequestNotFound."""
        for stream in self._of(stream_owner(identity)):
            if name in (stream.conversation, *stream.running.names):
                return stream
        raise RequestNotFound(name)

    def amounts(self) -> StreamAmounts:
        logs = [one.log for one in self._streams.values()]
        num_ended = sum(log.has_ended for log in logs)
        return StreamAmounts(len(logs) - num_ended, num_ended, sum(log.held_bytes for log in logs))

    def states(self, names: Sequence[str], identity: Identity) -> list[StreamState]:
        """Return these conversations' streams, also with a model behind (`NAME::MODEL`)."""
        streams = self._of(stream_owner(identity))
        return [
            StreamState(
                one.conversation, one.log.has_ended, one.log.total_bytes, one.started_at, one.ended_at
            )
            for name in names
            for one in streams
            if one.conversation == name or one.conversation.startswith(f"{name}::")
        ]

    def forget(self, stream: ResumableStream) -> None:
        """Remove a stream, and cancel its call so that readers get an error."""
        if self._streams.get((stream.owner, stream.conversation)) is stream:
            del self._streams[stream.owner, stream.conversation]
        if stream.timer is not None:
            stream.timer.cancel()
        if not stream.log.has_ended:
            stream.running.cancel()

    @contextlib.contextmanager
    def reading(self, stream: ResumableStream) -> Iterator[None]:
        """Keep the stream alive while a client reads."""
        stream.num_readers += 1
        if stream.timer is not None and not stream.log.has_ended:
            stream.timer.cancel()
        try:
            yield
        finally:
            stream.num_readers -= 1
            if not stream.num_readers and not stream.log.has_ended:
                self._forget_later(stream)

    async def close(self) -> None:
        for stream in self._streams.values():
            if stream.timer is not None:
                stream.timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    async def _see_through(self, stream: ResumableStream) -> None:
        try:
            await stream.run()
        finally:
            await stream.reservation.end()
            self._history.end(stream.running.request_log)
            stream.ended_at = int(time.time())
            stream.log.end()
            if self._streams.get((stream.owner, stream.conversation)) is stream:
                self._forget_later(stream)
                self._make_room()

    def _forget_later(self, stream: ResumableStream) -> None:
        """Forget the stream after `keep_s`, unless it still runs and a client reads."""
        if stream.timer is not None:
            stream.timer.cancel()
        stream.timer = asyncio.get_running_loop().call_later(self.keep_s, self.forget, stream)

    def _make_room(self) -> None:
        num_bytes = self.amounts().num_bytes
        ended = [one for one in self._streams.values() if one.log.has_ended]
        for one in sorted(ended, key=attrgetter("ended_at")):
            if num_bytes <= _MOST_BYTES_TOGETHER:
                return
            num_bytes -= one.log.held_bytes
            self.forget(one)

    def _of(self, owner: str) -> list[ResumableStream]:
        return [one for one in self._streams.values() if one.owner == owner]


def stream_owner(identity: Identity) -> str:
    """Identify streams by key. Without keys the conversation's name is enough."""
    return identity.digest or ""
