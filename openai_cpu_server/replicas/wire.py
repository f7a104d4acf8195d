"""Messages between API processes and engine replicas."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol, Union, cast

import msgspec

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.media import MeasuredMedia
from openai_cpu_server.contract.messages import (
    LENGTH,
    CancelRequest,
    ClearCache,
    KVStats,
    MeasureMedia,
    QueuePlace,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus, ModelInfo
from openai_cpu_server.replicas.router import ReplicaReport

MOST_MEDIA_BYTES = 768 * 1024 * 1024
_MOST_BYTES = MOST_MEDIA_BYTES + 256 * 1024 * 1024
_UNSENT_BYTES = 256 * 1024
_UNREAD_FRAMES = 64


@dataclass(eq=False)
class FrameStream(asyncio.Protocol):
    _: KW_ONLY
    most_bytes: int = _MOST_BYTES
    patience_s: float | None = None
    """Time for unsent data to drain. Exceeding either ends the connection."""
    opened: Callable[[FrameStream], None] | None = None
    _giving_up: asyncio.TimerHandle | None = None
    _transport: asyncio.Transport = field(init=False)
    _frames: deque[bytes] = field(default_factory=deque)
    _has_news: asyncio.Event = field(default_factory=asyncio.Event)
    _may_send: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._unread = bytearray()
        self._may_send.set()

    def trust(self) -> None:
        self.most_bytes = _MOST_BYTES

    def send(self, *parts: bytes) -> None:
        """Send one frame. A closed connection drops it."""
        if not self._transport.is_closing():
            self._transport.write(b"".join((LENGTH.pack(sum(map(len, parts))), *parts)))

    async def sent(self) -> None:
        """Wait while much is unsent."""
        await self._may_send.wait()

    async def receive(self) -> bytes | None:
        while not self._frames:
            if self._is_over:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        frame = self._frames.popleft()
        if not self._frames and not self._transport.is_closing():
            self._transport.resume_reading()
        return frame

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # -- an `asyncio.Protocol` ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if self.opened is not None:
            self.opened(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        begin = 0
        while (end := self._end(begin)) is not None:
            self._frames.append(bytes(self._unread[begin + LENGTH.size : end]))
            begin = end
        del self._unread[:begin]
        if len(self._frames) > _UNREAD_FRAMES:
            self._transport.pause_reading()
        self._has_news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._has_news.set()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._may_send.clear()
        if self.patience_s is not None:
            self._giving_up = asyncio.get_running_loop().call_later(self.patience_s, self.abort)

    def resume_writing(self) -> None:
        self._may_send.set()
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _end(self, begin: int) -> int | None:
        if len(self._unread) - begin < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread, begin)
        if length > self.most_bytes:
            self.abort()
            return None
        end: int = begin + LENGTH.size + length
        return end if end <= len(self._unread) else None


class ReplicaLost(Exception): ...


class ReplicaLink(Protocol):
    def attend(self, lease_holder: str) -> AsyncIterator[bytes]:
        """Yield news until the session ends. Raises ReplicaLost."""

    async def send_orders(self, lease_holder: str, orders: bytes) -> bool:
        """Return False if the lease holder is unknown. Raises ReplicaLost."""

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """A failure is a status too. Raises ReplicaLost."""


_ATTEMPT = "~"


def wire_id(request_id: str, attempt: int) -> str:
    """Name unique to the attempt, so that late news belong to none."""
    return f"{request_id}{_ATTEMPT}{attempt}" if attempt else request_id


def origin(wire: str) -> str:
    return wire.rpartition(_ATTEMPT)[0] or wire


class RenewLease(msgspec.Struct, frozen=True, tag="renew"):
    """Keeps a lease alive, as every order does."""


class CancelCall(msgspec.Struct, frozen=True, tag="cancel_call"):
    """Ends an API call, by its id or a sequence's, whichever process sent it."""

    name: str


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    name: str


Order = Union[Submit, CancelRequest, CancelCall, ClearCache, DropAdapter, MeasureMedia, RenewLease]


class EndReason(enum.Enum):
    FAILED = "failed"
    """The request is to blame, or cannot be computed."""
    CANCELLED = "cancelled"
    RETURNED = "returned"
    """Another replica may run it."""


class RequestEnd(msgspec.Struct, frozen=True):
    id: str
    why: EndReason
    message: str


class HostReport(ReplicaReport, frozen=True, kw_only=True, omit_defaults=True):
    status: EngineStatus
    info: ModelInfo | None = None
    kv: KVStats | None = None
    adapters: tuple[AdapterStatus, ...] = ()
    counted: int = 0
    """Order batches included in the forecast, at least."""
    others: tuple[LiveRequest, ...] | None = None
    """Others' requests, or None without a change."""

    @property
    def failure_reason(self) -> str | None:
        return None if self.state is EngineState.READY else self.status.reason


class ReplicaNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    report: HostReport | None = None
    started: tuple[str, ...] = ()
    places: tuple[QueuePlace, ...] = ()
    events: tuple[TokenEvent, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    ended: tuple[RequestEnd, ...] = ()
    measured: tuple[MeasuredMedia, ...] = ()
    spent_ms: dict[str, float] = {}
    """CPU time by client label since the last report to any API process."""


class DoorAddress(NamedTuple):
    address: str
    port: int
    token: str


class SessionHello(msgspec.Struct, frozen=True):
    """First frame, before orders."""

    token: str
    lease_holder: str = msgspec.field(name="lessee")  # so that releases that run side by side understand it


class NewsFrame:
    NEWS = b"n"
    TAKEN = b"t"
    """The oldest order batch is accepted, or rejected (UNKNOWN) from an unknown sender."""
    UNKNOWN = b"u"
    END = b"e"


_encoder = msgspec.msgpack.Encoder()
encode_orders: Callable[[list[Order]], bytes] = _encoder.encode
encode_news: Callable[[ReplicaNews], bytes] = _encoder.encode
read_orders: Callable[[bytes], list[Order]] = msgspec.msgpack.Decoder(list[Order]).decode
read_news: Callable[[bytes], ReplicaNews] = msgspec.msgpack.Decoder(ReplicaNews).decode
"""Both raise `msgspec.DecodeError`."""
