"""What an API process and an engine replica tell each other, and the frames that carry it."""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Union, cast

import msgspec

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.framing import LENGTH
from openai_cpu_server.contract.media import MeasuredMedia
from openai_cpu_server.contract.messages import (
    CancelRequest,
    ClearCache,
    KVStats,
    MeasureMedia,
    QueuePlace,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import AdapterStatus, ModelInfo
from openai_cpu_server.contract.replica import Forecast, HeldUpdate

MOST_MEDIA_BYTES = 768 * 1024 * 1024
"""Of the pictures and sounds of one request, decoded."""
_MOST_BYTES = MOST_MEDIA_BYTES + 256 * 1024 * 1024
_UNSENT_BYTES = 256 * 1024
"""What may wait to be sent before `sent` waits."""
_UNREAD_FRAMES = 64
"""When so many wait to be received, the other side's are left in the kernel."""


class FrameStream(asyncio.Protocol):
    """One end of a connection. Its methods belong to one event loop's thread."""

    def __init__(
        self,
        *,
        most_bytes: int = _MOST_BYTES,
        patience_s: float | None = None,
        opened: Callable[[FrameStream], None] | None = None,
    ) -> None:
        """`most_bytes`: of a frame that comes; a longer one ends the connection. `patience_s`: a connection
        that takes nothing for so long is ended. `opened` is told when it stands."""
        self.most_bytes = most_bytes
        self._patience_s = patience_s
        self._opened = opened
        self._giving_up: asyncio.TimerHandle | None = None
        """None: what is sent is taken."""
        self._transport: asyncio.Transport | None = None
        """None: before it stands."""
        self._unread = bytearray()
        self._frames: deque[bytes] = deque()
        self._has_news = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._is_over = False

    def trust(self) -> None:
        """The other side has shown who it is: its frames may be long."""
        self.most_bytes = _MOST_BYTES

    def send(self, *parts: bytes) -> None:
        """One frame. To a connection that is gone it is lost, as it would be a moment later."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join((LENGTH.pack(sum(map(len, parts))), *parts)))

    async def sent(self) -> None:
        """Wait while much is unsent. Returns at once when the connection is gone."""
        await self._may_send.wait()

    async def receive(self) -> bytes | None:
        """The next frame; None: the connection is gone, and half a frame with it."""
        while not self._frames:
            if self._is_over:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        frame = self._frames.popleft()
        if not self._frames and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return frame

    def close(self) -> None:
        """After what was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    # -- an `asyncio.Protocol` ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        begin = 0
        while (end := self._end(begin)) is not None:
            self._frames.append(bytes(self._unread[begin + LENGTH.size : end]))
            begin = end
        del self._unread[:begin]
        if len(self._frames) > _UNREAD_FRAMES and self._transport is not None:
            self._transport.pause_reading()
        self._has_news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._has_news.set()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._may_send.clear()
        if self._patience_s is not None:
            self._giving_up = asyncio.get_running_loop().call_later(self._patience_s, self.abort)

    def resume_writing(self) -> None:
        self._may_send.set()
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _end(self, begin: int) -> int | None:
        """Where the frame ends that begins there; None: it is not here yet."""
        if len(self._unread) - begin < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread, begin)
        if length > self.most_bytes:
            self.abort()
            return None
        end: int = begin + LENGTH.size + length
        return end if end <= len(self._unread) else None


_ATTEMPT = "~"


def wire_id(request_id: str, attempt: int) -> str:
    """What a replica calls a request. It is another one each time that the request is sent, so that nothing
    late of an earlier time is taken for its answer."""
    return f"{request_id}{_ATTEMPT}{attempt}" if attempt else request_id


def origin(wire: str) -> str:
    """The request's own id."""
    return wire.rpartition(_ATTEMPT)[0] or wire


class RenewLease(msgspec.Struct, frozen=True, tag="renew"):
    """The API process lives, and wants what it has ordered. Every order says so too."""


class CancelCall(msgspec.Struct, frozen=True, tag="cancel_call"):
    """End an API call, or the one that a sequence belongs to, whichever process has sent it."""

    name: str


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    """No new request may name it."""

    name: str


Order = Union[Submit, CancelRequest, CancelCall, ClearCache, DropAdapter, MeasureMedia, RenewLease]


class EndReason(enum.Enum):
    """Why a request ends without a finish."""

    FAILED = "failed"
    """It is to blame, or cannot be computed."""
    CANCELLED = "cancelled"
    """Somebody else has cancelled it."""
    RETURNED = "returned"
    """The replica cannot compute it any more. Another one may."""


class RequestEnd(msgspec.Struct, frozen=True):
    id: str
    why: EndReason
    message: str


class HostReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a replica stands."""

    state: EngineState
    status: EngineStatus
    info: ModelInfo | None = None
    """None: its model was not loaded yet."""
    kv: KVStats | None = None
    adapters: tuple[AdapterStatus, ...] = ()
    forecast: Forecast | None = None
    held: HeldUpdate | None = None
    """None: nothing has changed since the report before."""
    counted: int = 0
    """The forecast has counted at least so many of the tellings of orders."""
    others: tuple[LiveRequest, ...] | None = None
    """The requests of other API processes; None: as they were told last."""

    @property
    def reason_told(self) -> str | None:
        """Why it does not serve, where that is so."""
        return None if self.state is EngineState.READY else self.status.reason


class ReplicaNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has come about for one API process since the news before."""

    report: HostReport | None = None
    started: tuple[str, ...] = ()
    """These are in a step, or were."""
    places: tuple[QueuePlace, ...] = ()
    """Where some wait, as it has changed."""
    events: tuple[TokenEvent, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    ended: tuple[RequestEnd, ...] = ()
    measured: tuple[MeasuredMedia, ...] = ()
    spent_ms: dict[str, float] = {}
    """By the label of the client: CPU time of the engine that no API process was told of yet."""


class DoorAddress(NamedTuple):
    """Where a replica listens for connections of API processes."""

    address: str
    port: int
    token: str
    """Whoever tells it is let in."""


class SessionHello(msgspec.Struct, frozen=True):
    """The first frame of a connection. All later ones from there are orders."""

    token: str
    lease_holder: str = msgspec.field(name="lessee")  # so that releases that run side by side understand it


class NewsFrame:
    """The first byte of a frame from a replica."""

    NEWS = b"n"
    """News follow."""
    TAKEN = b"t"
    """The next orders that were not answered yet are obeyed."""
    UNKNOWN = b"u"
    """They are not: it does not know who tells them."""
    END = b"e"
    """It has ended the session."""


_encoder = msgspec.msgpack.Encoder()
encode_orders: Callable[[list[Order]], bytes] = _encoder.encode
encode_news: Callable[[ReplicaNews], bytes] = _encoder.encode
read_orders: Callable[[bytes], list[Order]] = msgspec.msgpack.Decoder(list[Order]).decode
read_news: Callable[[bytes], ReplicaNews] = msgspec.msgpack.Decoder(ReplicaNews).decode
"""Both that read raise `msgspec.DecodeError`."""
