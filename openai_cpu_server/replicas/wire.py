"""What an API process and an engine replica tell each other: orders go there, news come back."""

from __future__ import annotations

import enum
from typing import NamedTuple, Union

import msgspec

from openai_cpu_server.contract.adapter import AdapterStatus
from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.messages import (
    Cancel,
    ClearCache,
    KVStats,
    Place,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.replica import Forecast, HeldUpdate

_ATTEMPT = "~"


def wire_id(request_id: str, attempt: int) -> str:
    """What a replica calls a request. It is another one each time that the request is sent, so that nothing
    late of an earlier time is taken for its answer."""
    return f"{request_id}{_ATTEMPT}{attempt}" if attempt else request_id


def origin(wire: str) -> str:
    """The request's own id."""
    return wire.rpartition(_ATTEMPT)[0] or wire


class Renew(msgspec.Struct, frozen=True, tag="renew"):
    """The API process lives, and wants what it has ordered. Every order says so too."""


class CancelCall(msgspec.Struct, frozen=True, tag="cancel_call"):
    """End an API call, or the one that a sequence belongs to, whichever process has sent it."""

    name: str


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    """No new request may name it."""

    name: str


Order = Union[Submit, Cancel, CancelCall, ClearCache, DropAdapter, Renew]


class Why(enum.Enum):
    """Why a request ends without a finish."""

    FAILED = "failed"
    """It is to blame, or cannot be computed."""
    CANCELLED = "cancelled"
    """Somebody else has cancelled it."""
    RETURNED = "returned"
    """The replica cannot compute it any more. Another one may."""


class Ended(msgspec.Struct, frozen=True):
    id: str
    why: Why
    message: str


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has come about for one API process since the news before."""

    report: Report | None = None
    started: tuple[str, ...] = ()
    """These are in a step, or were."""
    places: tuple[Place, ...] = ()
    """Where some wait, as it has changed."""
    events: tuple[TokenEvent, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    ended: tuple[Ended, ...] = ()
    spent_ms: dict[str, float] = {}
    """By the label of the client: CPU time of the engine that no API process was told of yet."""


class DoorPlate(NamedTuple):
    """Where a replica listens for connections of API processes."""

    address: str
    port: int
    token: str
    """Whoever tells it is let in."""


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a connection. All later ones from there are orders."""

    token: str
    lessee: str


class Kind:
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
_orders = msgspec.msgpack.Decoder(list[Order])
_news = msgspec.msgpack.Decoder(News)


def encode_orders(orders: list[Order]) -> bytes:
    return _encoder.encode(orders)


def read_orders(payload: bytes) -> list[Order]:
    """Raises `msgspec.DecodeError`."""
    return _orders.decode(payload)


def encode_news(news: News) -> bytes:
    return _encoder.encode(news)


def read_news(payload: bytes) -> News:
    """Raises `msgspec.DecodeError`."""
    return _news.decode(payload)
