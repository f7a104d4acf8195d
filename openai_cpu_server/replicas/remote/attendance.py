"""One session with one replica, and what is known of that replica."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from openai_cpu_server.contract.engine import EngineState, RequestState
from openai_cpu_server.contract.messages import Submit
from openai_cpu_server.contract.model_info import AdapterState
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.replicas.report import ReplicaLink, ReplicaLost
from openai_cpu_server.replicas.wire import (
    HostReport,
    Order,
    RenewLease,
    ReplicaNews,
    encode_orders,
    read_news,
)

logger = logging.getLogger(__name__)

_PATIENCE = 0.5
"""The share of a lease after which a replica that does not answer is given up: before it gives us up."""
_RENEWALS = 4
"""In the time of a lease."""
_SILENCE_S = 4.0
"""A replica that answers, and whose news do not come for so long (nor for a lease), is given up: it tells
something every second."""


class SessionListener(Protocol):
    def heard(self, session: ReplicaSession, news: ReplicaNews) -> None: ...

    def lost(self, session: ReplicaSession, why: str, *, is_death: bool) -> None:
        """Nothing is heard of the replica any more. Told once, unless we have left. Else than by a death: it
        has ended the session."""
        ...


class ReplicaSession:
    """It is lost when the stream of news ends, or when an order is not answered in time."""

    def __init__(
        self,
        replica: str,
        link: ReplicaLink,
        lease_holder: str,
        listener: SessionListener,
        *,
        lease_s: float,
        clock: Callable[[], float],
    ) -> None:
        """`lease_holder`: what we call ourselves; another name in each session."""
        self.replica = replica
        self.link = link
        self._lease_holder = lease_holder
        self._listener = listener
        self._lease_s = lease_s
        self._clock = clock
        self._orders: list[Order] = []
        self._has_orders = asyncio.Event()
        self._told_s: deque[float] = deque()
        """When each telling of orders began, from the first on that it has not counted."""
        self._num_counted = 0
        """How many were told before these."""
        self._heard_s = clock()
        self._is_over = False
        self._listening = asyncio.create_task(self._listen())
        self._telling: asyncio.Task[None] | None = None
        """None: it has told nothing yet, and would not know us."""

    def send(self, *orders: Order) -> None:
        """Orders that come while others are on their way go together."""
        self._orders.extend(orders)
        self._has_orders.set()

    def counted_s(self, num_told: int) -> float:
        """What was sent before that time was told with the first `num_told` tellings. From one question to
        the next they must not become fewer."""
        while self._told_s and self._num_counted < num_told:
            self._told_s.popleft()
            self._num_counted += 1
        return self._told_s[0] if self._told_s else self._clock()

    def leave_in(self, seconds: float) -> None:
        """Leave later: until then it is told whether the replica dies."""
        asyncio.get_running_loop().call_later(seconds, self.leave)

    def leave(self) -> None:
        """We want nothing more of it."""
        self._is_over = True
        self._listening.cancel()
        if self._telling is not None:
            self._telling.cancel()

    async def _listen(self) -> None:
        try:
            async for payload in self.link.attend(self._lease_holder):
                self._heard_s = self._clock()
                if self._telling is None:
                    self._telling = asyncio.create_task(self._tell())
                self._listener.heard(self, read_news(payload))
        except ReplicaLost as error:
            self._lose(str(error))
        except msgspec.DecodeError as error:
            self._lose(f"it sends what cannot be read ({error})")
        except Exception as error:  # ours: unheard, its requests would wait for ever
            logger.exception("the news of the replica %s could not be followed", self.replica)
            self._lose(f"its news could not be followed ({error})")
        else:
            self._lose("it has ended the session", is_death=False)

    async def _tell(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._has_orders.wait(), self._lease_s / _RENEWALS)
            except asyncio.TimeoutError:
                self._orders.append(RenewLease())
            orders = self._next_orders()
            self._told_s.append(self._clock())
            if not await self._is_taken(encode_orders(orders)):
                return
            if self._clock() - self._heard_s > max(_SILENCE_S, self._lease_s):
                self._lose("it answers, but its news do not come")
                return

    def _next_orders(self) -> list[Order]:
        """All, but of those that bring pictures or sound, which are large, the first ends them."""
        large = (number for number, order in enumerate(self._orders, 1) if _is_large(order))
        count = next(large, len(self._orders))
        orders, self._orders = self._orders[:count], self._orders[count:]
        if not self._orders:
            self._has_orders.clear()
        return orders

    async def _is_taken(self, payload: bytes) -> bool:
        try:
            telling = self.link.tell(self._lease_holder, payload)
            is_known = await asyncio.wait_for(telling, _PATIENCE * self._lease_s)
        except asyncio.TimeoutError:
            self._lose(f"it has not answered for {_PATIENCE * self._lease_s:.1f} s")
            return False
        except ReplicaLost as error:
            self._lose(str(error))
            return False
        if not is_known:
            self._lose("it has given us up")
        return is_known

    def _lose(self, why: str, *, is_death: bool = True) -> None:
        if self._is_over:
            return
        logger.warning("the replica %s is lost: %s", self.replica, why)
        self.leave()
        self._listener.lost(self, why, is_death=is_death)


def _is_large(order: Order) -> bool:
    request = order.request if isinstance(order, Submit) else None
    return isinstance(request, GenerationRequest) and bool(request.media_items)


@dataclass
class KnownReplica:
    """A replica that is there, or was told to go."""

    session: ReplicaSession
    report: HostReport | None = None
    """None: it has told nothing yet."""
    is_going: bool = False
    """It is to get nothing new, and what it has moves as soon as another can take it."""
    adapters_asked: set[str] = field(default_factory=set)
    """The keys of those that it was asked to load, beside those that it has had from its start."""
    adapters_refused: set[str] = field(default_factory=set)
    """The keys of those of them that it cannot load."""
    adapters_seen: set[str] = field(default_factory=set)
    """The keys of all that it has ever told of."""

    @property
    def is_ready(self) -> bool:
        is_ready = self.report is not None and self.report.state is EngineState.READY
        return is_ready and not self.is_going

    @property
    def is_shared(self) -> bool:
        """By its last report it computes requests of other API processes that have gained nothing yet."""
        others = (self.report and self.report.others) or ()
        return any(
            one.state is RequestState.RUNNING and not one.output_tokens and not one.num_embedded
            for one in others
        )

    def has(self, key: str | None) -> bool:
        """It has the adapter; None: none is needed."""
        return key is None or AdapterState.READY in self._adapter_states(key)

    def may_have(self, key: str) -> bool:
        """It has the adapter, or is about to load it; one that has told nothing yet may have it."""
        is_asked = key in self.adapters_asked - self.adapters_refused
        is_known = self._adapter_states(key) - {AdapterState.FAILED}
        return self.report is None or is_asked or bool(is_known)

    def _adapter_states(self, key: str) -> set[AdapterState]:
        """At most one."""
        adapters = self.report.adapters if self.report is not None else ()
        return {status.state for status in adapters if status.adapter.key == key}
