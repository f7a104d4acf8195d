"""Session with one replica."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

import msgspec

from openai_cpu_server.contract.engine import EngineState, RequestState
from openai_cpu_server.contract.messages import Submit
from openai_cpu_server.contract.model_info import AdapterState
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.replicas import wire

logger = logging.getLogger(__name__)

_PATIENCE = 0.5
"""Share of a lease after which a silent replica is given up, before it gives us up."""
_RENEWALS = 4
_SILENCE_S = 4.0
"""Patience, beside a lease, with a replica that should send news every second."""

_MOST_TOKENS = 65_536
"""Prompt tokens of one order batch, or of its last order. A million take 14 ms to encode."""


@dataclass(eq=False)
class ReplicaSession:
    """Lost when the stream of news ends, or when an order is not answered in time."""

    replica: str
    link: wire.ReplicaLink
    lease_holder: str
    """Our name, unique to the session."""
    on_news: Callable[[ReplicaSession, wire.ReplicaNews], None]
    lost: Callable[[ReplicaSession, str, bool], None]
    """Called once, unless we left, with the reason, and False if the replica ended the session."""
    _: KW_ONLY
    lease_s: float
    clock: Callable[[], float]
    _orders: list[wire.Order] = field(default_factory=list)
    _has_orders: asyncio.Event = field(default_factory=asyncio.Event)
    _sent_s: deque[float] = field(default_factory=deque)
    """Start times of order batches that no forecast includes yet."""
    _num_counted: int = 0
    _is_over: bool = False
    _sending: asyncio.Task[None] | None = None
    """Started by the first news, because the replica would not know us before."""

    def __post_init__(self) -> None:
        self._last_news_s = self.clock()
        self._listening = asyncio.create_task(self._listen())

    def send(self, *orders: wire.Order) -> None:
        self._orders.extend(orders)
        self._has_orders.set()

    def counted_s(self, num_sent: int) -> float:
        """Return the time before which all orders were in the first `num_sent` batches."""
        while self._sent_s and self._num_counted < num_sent:
            self._sent_s.popleft()
            self._num_counted += 1
        return self._sent_s[0] if self._sent_s else self.clock()

    def leave_in(self, seconds: float) -> None:
        """Until it leaves, the replica's death is reported."""
        asyncio.get_running_loop().call_later(seconds, self.leave)

    def leave(self) -> None:
        self._is_over = True
        self._listening.cancel()
        if self._sending is not None:
            self._sending.cancel()

    async def _listen(self) -> None:
        try:
            async for payload in self.link.attend(self.lease_holder):
                self._last_news_s = self.clock()
                if self._sending is None:
                    self._sending = asyncio.create_task(self._send_orders())
                self.on_news(self, wire.read_news(payload))
        except wire.ReplicaLost as error:
            self._lose(str(error))
        except msgspec.DecodeError as error:
            self._lose(f"it sends what cannot be read ({error})")
        except Exception as error:  # ours: unheard, its requests would wait for ever
            logger.exception("the news of the replica %s could not be followed", self.replica)
            self._lose(f"its news could not be followed ({error})")
        else:
            self._lose("it has ended the session", is_death=False)

    async def _send_orders(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._has_orders.wait(), self.lease_s / _RENEWALS)
            except asyncio.TimeoutError:
                self._orders.append(wire.RenewLease())
            orders, patience_s = self._next_orders(), _PATIENCE * self.lease_s
            self._sent_s.append(self.clock())
            try:
                sending = self.link.send_orders(self.lease_holder, wire.encode_orders(orders))
                is_taken = await asyncio.wait_for(sending, patience_s)
            except asyncio.TimeoutError:
                return self._lose(f"it has not answered for {patience_s:.1f} s")
            except wire.ReplicaLost as error:
                return self._lose(str(error))
            if not is_taken:
                return self._lose("it has given us up")
            if self.clock() - self._last_news_s > max(_SILENCE_S, self.lease_s):
                return self._lose("it answers, but its news do not come")

    def _next_orders(self) -> list[wire.Order]:
        """A large order ends a batch, because both ends encode and read it at once."""
        count, num_tokens = 0, 0
        for order in self._orders:
            count += 1
            request = order.request if isinstance(order, Submit) else None
            num_tokens += request.num_tokens if request is not None else 0
            has_media = isinstance(request, GenerationRequest) and request.media_items
            if has_media or num_tokens >= _MOST_TOKENS:
                break
        orders, self._orders = self._orders[:count], self._orders[count:]
        if not self._orders:
            self._has_orders.clear()
        return orders

    def _lose(self, why: str, *, is_death: bool = True) -> None:
        if self._is_over:
            return
        logger.warning("the replica %s is lost: %s", self.replica, why)
        self.leave()
        self.lost(self, why, is_death)


@dataclass
class ReplicaMember:
    session: ReplicaSession
    report: wire.HostReport | None = None
    is_going: bool = False
    """True if new requests go elsewhere, and its own as soon as possible."""
    adapters_requested: set[str] = field(default_factory=set)
    """Adapters that it was to load, beside those from its start."""
    adapters_refused: set[str] = field(default_factory=set)
    adapters_seen: set[str] = field(default_factory=set)

    @property
    def is_ready(self) -> bool:
        is_ready = self.report is not None and self.report.state is EngineState.READY
        return is_ready and not self.is_going

    @property
    def is_shared(self) -> bool:
        """True if others' requests wait for output."""
        others = (self.report and self.report.others) or ()
        return any(
            one.state is RequestState.RUNNING and not one.output_tokens and not one.num_embedded
            for one in others
        )

    def has(self, key: str | None) -> bool:
        return key is None or AdapterState.READY in self._adapter_states(key)

    def may_have(self, key: str) -> bool:
        """Return True if it has the adapter or is loading it, or has sent no report."""
        is_requested = key in self.adapters_requested - self.adapters_refused
        is_present = self._adapter_states(key) - {AdapterState.FAILED}
        return self.report is None or is_requested or bool(is_present)

    def _adapter_states(self, key: str) -> set[AdapterState]:
        adapters = self.report.adapters if self.report is not None else ()
        return {status.state for status in adapters if status.adapter.key == key}
