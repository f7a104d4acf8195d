"""Requests to replicas, and their news."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import msgspec

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.media import MeasuredMedia
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus
from openai_cpu_server.errors import GenerationFailed, RequestCancelled
from openai_cpu_server.replicas import wire
from openai_cpu_server.replicas.remote.assignment import RequestAssignment
from openai_cpu_server.replicas.remote.session import ReplicaMember, ReplicaSession
from openai_cpu_server.replicas.router import ReplicaRouter

logger = logging.getLogger(__name__)

_CONNECT_S = 5.0
"""Timeout of the connection, and of the first news, which a replica sends at once."""


@dataclass(eq=False)
class StreamLink:
    door: Callable[[], Awaitable[wire.DoorAddress]]
    """Return the address of the door. Raises ReplicaLost."""
    load_adapter: Callable[[Adapter], Coroutine[Any, Any, AdapterStatus]]
    tls: ssl.SSLContext | None = None
    _sessions: dict[str, _Session] = field(default_factory=dict)

    async def attend(self, lease_holder: str) -> AsyncIterator[bytes]:
        session = await self._connected(await self.door(), lease_holder)
        self._sessions[lease_holder] = session
        try:
            while (news := await session.news()) is not None:
                yield news
        finally:
            del self._sessions[lease_holder]
            session.close()

    async def send_orders(self, lease_holder: str, orders: bytes) -> bool:
        session = self._sessions.get(lease_holder)
        if session is None:
            raise wire.ReplicaLost("there is no connection to it")
        return await session.send_orders(orders)

    async def _connected(self, door: wire.DoorAddress, lease_holder: str) -> _Session:
        loop = asyncio.get_running_loop()
        host = "" if self.tls else None
        try:
            with anyio.fail_after(_CONNECT_S):
                _, stream = await loop.create_connection(
                    wire.FrameStream, door.address, door.port, ssl=self.tls, server_hostname=host
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no answer came in {_CONNECT_S:g} s"
            raise wire.ReplicaLost(f"cannot connect to {door.address}:{door.port}: {why}") from None
        stream.send(msgspec.msgpack.encode(wire.SessionHello(door.token, lease_holder)))
        return _Session(stream)


@dataclass(eq=False)
class _Session:
    stream: wire.FrameStream
    _untaken: deque[asyncio.Future[bool]] = field(default_factory=deque)
    _patience_s: float | None = _CONNECT_S

    async def news(self) -> bytes | None:
        while True:
            try:
                with anyio.fail_after(self._patience_s):
                    frame = await self.stream.receive()
            except TimeoutError:
                raise wire.ReplicaLost(f"it has sent nothing in {self._patience_s:g} s") from None
            if frame is None:
                raise wire.ReplicaLost("the connection to it was cut")
            self._patience_s, kind = None, frame[:1]
            if kind == wire.NewsFrame.NEWS:
                return frame[1:]
            if kind == wire.NewsFrame.END:
                return None
            if self._untaken and not (answer := self._untaken.popleft()).done():
                answer.set_result(kind == wire.NewsFrame.TAKEN)

    async def send_orders(self, orders: bytes) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._untaken.append(answer)
        self.stream.send(orders)
        return await answer

    def close(self) -> None:
        self.stream.abort()
        for answer in self._untaken:
            if not answer.done():
                answer.set_exception(wire.ReplicaLost("the connection to it was cut"))


_LAST_WORDS_S = 2.0
"""Time for a departed replica's last news: the cause of its death, and CPU time."""


class ReplicaProxy:
    def __init__(self, clock: Callable[[], float], router: ReplicaRouter, *, lease_s: float) -> None:
        self.replicas: dict[str, ReplicaMember] = {}
        self.requests = RequestAssignment(self.replicas, router, clock)
        self.lost_replicas: set[str] = set()
        self.last_loss: tuple[str, float] | None = None
        self.on_report: Callable[[str], None] = lambda replica: None
        self.on_spent: Callable[[dict[str, float]], None] = lambda spent_ms: None
        self.on_measured: Callable[[Sequence[MeasuredMedia]], None] = lambda measured: None
        self._clock = clock
        self._router = router
        self._lease_s = lease_s
        self._links: dict[str, wire.ReplicaLink] = {}
        self._sessions = (f"{secrets.token_hex(6)}-{number}" for number in itertools.count())

    # -- replicas ----------------------------------------------------------------------------------------

    def set_replicas(self, links: Mapping[str, wire.ReplicaLink]) -> None:
        """Attend new replicas. Absent ones get no new requests, and their requests move."""
        self._links = dict(links)
        for name in links:
            if name not in self.replicas:
                self._attend(name)
        for name, member in list(self.replicas.items()):
            if name not in links and not member.is_going:
                member.is_going = True
                self._router.gone(name)
                self._empty(name)

    def retry(self) -> None:
        for name in self._links.keys() - self.replicas.keys():
            self._attend(name)

    def send(self, replica: str, *orders: wire.Order) -> None:
        if replica in self.replicas:
            self.replicas[replica].session.send(*orders)

    def close(self) -> None:
        for member in self.replicas.values():
            member.session.leave()
        self.replicas.clear()

    # -- sessions ----------------------------------------------------------------------------------------

    def handle(self, session: ReplicaSession, news: wire.ReplicaNews) -> None:
        replica = session.replica
        self.on_spent(news.spent_ms)
        self.on_measured(news.measured)
        if self.replicas.get(replica) is None or self.replicas[replica].session is not session:
            return
        self._deliver(replica, news)
        self._end(replica, news.ended)
        if news.report is not None:
            self._reported(replica, news.report)

    def lost(self, session: ReplicaSession, why: str, is_death: bool) -> None:
        replica = session.replica
        member = self.replicas.get(replica)
        if is_death:
            self.lost_replicas.add(replica)
            self.last_loss = (f"the replica {replica} was lost: {why}", self._clock())
        if member is None or member.session is not session:
            return  # it was empty
        del self.replicas[replica]
        self._router.gone(replica)
        self.requests.displace(self.requests.assigned_to(replica), member, why, accuses=is_death)
        self.requests.place_waiting()

    # -- inside: replicas --------------------------------------------------------------------------------

    def _attend(self, name: str) -> None:
        session = ReplicaSession(
            name,
            self._links[name],
            next(self._sessions),
            self.handle,
            self.lost,
            lease_s=self._lease_s,
            clock=self._clock,
        )
        self.replicas[name] = ReplicaMember(session)

    def _empty(self, name: str) -> None:
        if self.requests.empty(name):
            self.replicas.pop(name).session.leave_in(_LAST_WORDS_S)

    def _reported(self, replica: str, report: wire.HostReport) -> None:
        member = self.replicas[replica]
        if report.others is None and member.report is not None:
            report = msgspec.structs.replace(report, others=member.report.others)
        member.report = report
        if member.is_going:
            self._empty(replica)
            return
        made_s = member.session.counted_s(report.counted)
        self._router.reported(replica, report, made_s=made_s, now_s=self._clock())
        self.on_report(replica)
        self.requests.place_waiting()
        if member.is_ready:
            self.requests.take_over(replica)
            for name in [name for name, other in self.replicas.items() if other.is_going]:
                self._empty(name)

    # -- inside: events of requests ----------------------------------------------------------------------

    def _deliver(self, replica: str, news: wire.ReplicaNews) -> None:
        find = self.requests.find
        here = [live for name in news.started if (live := find(replica, name)) is not None]
        for live in self.requests.live.computing(tuple(live.request.id for live in here)):
            live.answer.start()
        events: list[TokenEvent | Embedded] = [*news.events, *news.embedded]
        for event in events:
            live_there = find(replica, event.id)
            if live_there is not None:
                self.requests.advance(live_there)
                name = live_there.request.id
                renamed = event if event.id == name else msgspec.structs.replace(event, id=name)
                self.requests.delivery.deliver(renamed)
        places = [
            msgspec.structs.replace(place, id=live.request.id)
            for place in news.places
            if (live := find(replica, place.id)) is not None
        ]
        if places:
            among = self.requests.assigned_to(replica)
            for answer, place in self.requests.live.waiting(places, self._clock(), among=among).items():
                answer.wait_at(place)

    def _end(self, replica: str, news: Sequence[wire.RequestEnd]) -> None:
        there = [(live, end) for end in news if (live := self.requests.find(replica, end.id)) is not None]
        for live, end in there:
            if end.why is wire.EndReason.FAILED:  # the request has crashed the replica's engine
                self.requests.culprits.book(live.request.account, live.call)
            if end.why is not wire.EndReason.RETURNED:
                error = RequestCancelled if end.why is wire.EndReason.CANCELLED else GenerationFailed
                self.requests.delivery.fail([live], partial(error, end.message))
        returned = [(live, end.message) for live, end in there if end.why is wire.EndReason.RETURNED]
        if returned:  # the next report of any replica finds them a place
            lives = [live for live, _ in returned]
            self.requests.displace(lives, self.replicas[replica], returned[-1][1])
