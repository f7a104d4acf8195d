"""Engine replica and its door for API processes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import anyio
import msgspec

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import end_cancelled
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AnswerSink, names_of
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import GenerationFailed, RequestCancelled, ServerError
from openai_cpu_server.replicas import wire

logger = logging.getLogger(__name__)


class CpuSpending:
    """CPU time that one API process reports, to the account of all."""

    def __init__(self) -> None:
        self._spent_ms: dict[str, float] = {}

    def step_done(self, figures: messages.StepFigures) -> None:
        self.add(figures.spent_ms)

    def engine_died(self, cause: str) -> None: ...

    def add(self, spent_ms: dict[str, float]) -> None:
        for client, added_ms in spent_ms.items():
            self._spent_ms[client] = self._spent_ms.get(client, 0.0) + added_ms

    def take(self) -> dict[str, float]:
        spent_ms, self._spent_ms = self._spent_ms, {}
        return spent_ms


@dataclass(eq=False)
class HostSession:
    """Collects news until it is fetched, so that a step's news go together."""

    lease_holder: str
    renewed_s: float
    num_batches: int = 0
    held_version: int | None = None
    spending: CpuSpending = field(default_factory=CpuSpending)
    last: wire.HostReport | None = None
    reported_s: float = 0.0
    num_seen: int = 0
    others_s: float = float("-inf")
    """Time of the last report of others."""
    _report: wire.HostReport | None = None
    _started: dict[str, None] = field(default_factory=dict)
    _places: dict[str, messages.QueuePlace] = field(default_factory=dict)
    _collected: list[messages.TokenEvent | Embedded | wire.RequestEnd | MeasuredMedia] = field(
        default_factory=list
    )
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next(self) -> wire.ReplicaNews | None:
        await self._news.wait()
        if self._is_over:
            return None
        collected, self._collected = self._collected, []
        news = wire.ReplicaNews(
            report=self._report,
            started=tuple(self._started),
            places=tuple(self._places.values()),
            events=tuple(one for one in collected if isinstance(one, messages.TokenEvent)),
            embedded=tuple(one for one in collected if isinstance(one, Embedded)),
            ended=tuple(one for one in collected if isinstance(one, wire.RequestEnd)),
            measured=tuple(one for one in collected if isinstance(one, MeasuredMedia)),
            spent_ms=self.spending.take(),
        )
        self._report = None
        self._started.clear()
        self._places.clear()
        self._news.clear()
        return news

    # -- events ------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True until the last report is fetched, because a new one would lose its changes of held
        prefixes."""
        return self._report is not None

    def report(self, report: wire.HostReport) -> None:
        self._report = self.last = report
        self._news.set()

    def start(self, request_id: str) -> None:
        self._started[request_id] = None
        self._places.pop(request_id, None)
        self._news.set()

    def wait_at(self, place: messages.QueuePlace) -> None:
        self._places[place.id] = place
        self._started.pop(place.id, None)
        self._news.set()

    def collect(self, news: messages.TokenEvent | Embedded | wire.RequestEnd | MeasuredMedia) -> None:
        self._collected.append(news)
        self._news.set()


@dataclass(eq=False)
class SessionRelay(AnswerSink):
    request_id: str
    session: HostSession
    serves: Callable[[], bool]
    _is_running: bool = False

    def start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self.session.start(self.request_id)

    def wait_at(self, place: messages.QueuePlace | messages.ModelLoading) -> None:
        if isinstance(place, messages.QueuePlace):  # the router knows which replicas load
            self._is_running = False
            self.session.wait_at(place)

    def push(self, event: messages.TokenEvent | Embedded) -> None:
        self.session.collect(event)

    def fail(self, request_id: str, error: ServerError) -> None:
        is_to_blame = isinstance(error, GenerationFailed) and not error.may_retry and self.serves()
        why = wire.EndReason.FAILED if is_to_blame else wire.EndReason.RETURNED
        if isinstance(error, RequestCancelled):
            why = wire.EndReason.CANCELLED
        self.session.collect(wire.RequestEnd(request_id, why, str(error)))


_BUSY_S, _IDLE_S = 0.25, 1.0
"""Longest time between reports while forecasts change, and while they do not."""
_OTHERS_S = 1.0
"""Interval for reports of others' requests, of which there may be thousands."""


_TICK_S = 0.25
_SERVING = (EngineState.READY, EngineState.RESTARTING, EngineState.LOADING)


class ReplicaHost:
    """Requests of API processes. Those of a process that is silent for `lease_s` end, because another replica
    runs them by now."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        lease_s: float,
        spending: CpuSpending | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settled = supervisor.settled
        self._supervisor = supervisor
        self._adapters = supervisor.news.adapters
        self._lease_s = lease_s
        self._clock = clock
        self._replay = RequestReplay(clock, self._adapters.free, CulpritLedger(clock))
        self._adapters.is_used = self._replay.uses_adapter
        self._sessions: dict[str, HostSession] = {}
        self._has_no_sessions = asyncio.Event()
        self._has_no_sessions.set()
        self._measuring: set[asyncio.Task[None]] = set()
        self._spending = spending or CpuSpending()

    # -- for its owner -----------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    @property
    def num_live(self) -> int:
        return self._replay.num_live

    def status(self) -> EngineStatus:
        return self._supervisor.status(self._replay.live.count)

    async def run(self) -> None:
        """Serve until `close`. A failure to load is a state."""
        if self._supervisor.state is EngineState.ASLEEP:
            self._supervisor.wake()
        ticking = asyncio.create_task(self._tick())
        try:
            await self._supervisor.run(self._replay)
        finally:
            ticking.cancel()

    async def left(self) -> None:
        await self._has_no_sessions.wait()

    async def close(self) -> None:
        for session in list(self._sessions.values()):
            self._forget(session)
        self._supervisor.stop()
        await self._supervisor.wait_for_end()

    # -- a `ReplicaLink`, for API processes --------------------------------------------------------------

    async def attend(self, lease_holder: str) -> AsyncIterator[bytes]:
        session = HostSession(lease_holder, self._clock())
        self._sessions[lease_holder] = session
        self._has_no_sessions.clear()
        self._report(session)
        try:
            while (news := await session.next()) is not None:
                yield wire.encode_news(news)
        finally:
            self._forget(session)

    async def send_orders(self, lease_holder: str, orders: bytes) -> bool:
        session = self._sessions.get(lease_holder)
        if session is None:
            return False
        session.renewed_s = self._clock()
        session.num_batches += 1
        read = wire.read_orders(orders)
        self._submit(session, [order for order in read if isinstance(order, messages.Submit)])
        for order in read:
            if isinstance(order, messages.MeasureMedia):
                task = asyncio.create_task(self._measure(session, order.sizes))
                self._measuring.add(task)
                task.add_done_callback(self._measuring.discard)
            else:
                self._follow(order)
        return True

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        try:
            return await self._adapters.load(adapter)
        except ServerError as error:
            return AdapterStatus(adapter=adapter, state=AdapterState.FAILED, reason=str(error))

    # -- inside ------------------------------------------------------------------------------------------

    async def _measure(self, session: HostSession, sizes: Sequence[MediaSize]) -> None:
        """After an error the client repeats the request, or sends it to another replica."""
        with contextlib.suppress(ServerError):
            for measured in await self._supervisor.news.shapes.measured(sizes):
                session.collect(measured)

    def _submit(self, session: HostSession, submitted: Iterable[messages.Submit]) -> None:
        taken = []
        for one in submitted:
            request = one.request
            if self._can_compute(request):
                relay = SessionRelay(request.id, session, self._serves)
                taken.append(
                    AcceptedRequest(request, relay, self._clock(), list(one.output), one.num_embedded)
                )
            else:
                session.collect(
                    wire.RequestEnd(
                        request.id, wire.EndReason.RETURNED, "This replica cannot compute the request."
                    )
                )
        if taken:
            self._replay.accept(taken)

    def _can_compute(self, request: GenerationRequest | EmbedRequest) -> bool:
        if not self._serves():
            return False
        if request.adapter is None:
            return True
        status = self._adapters.status(request.adapter)
        return status is not None and status.state is not AdapterState.FAILED

    def _serves(self) -> bool:
        return self._supervisor.state in _SERVING

    def _follow(self, order: wire.Order) -> None:
        match order:
            case messages.CancelRequest(id=request_id, reason=messages.FinishReason.STOP):
                if (live := self._replay.live.get(request_id)) is not None:
                    self._replay.stop(live)
            case messages.CancelRequest(id=request_id):
                self._replay.cancel(request_id)
            case wire.CancelCall(name=name):
                call = [live for live in self._replay.live if name in names_of(wire.origin(live.request.id))]
                end_cancelled(self._replay, call)
            case messages.ClearCache():
                self._supervisor.send(order)
            case wire.DropAdapter(name=name):
                self._adapters.unload(name)
            case messages.MeasureMedia() | wire.RenewLease() | messages.Submit():
                pass

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            for session in list(self._sessions.values()):
                if self._clock() - session.renewed_s > self._lease_s:
                    logger.warning(
                        "an API process was silent for %.0f s: its requests are ended", self._lease_s
                    )
                    self._forget(session)
                elif self._is_due(session):
                    self._report(session)

    def _is_due(self, session: HostSession) -> bool:
        """Changes of the state are due at once."""
        if session.is_behind:
            return False
        last, supervisor = session.last, self._supervisor
        if last is None or (last.state, last.status.reason) != (supervisor.state, supervisor.reason):
            return True
        has_news = supervisor.news.forecast is not last.forecast
        return self._clock() - session.reported_s >= (_BUSY_S if has_news else _IDLE_S)

    def _report(self, session: HostSession) -> None:
        session.spending.add(self._spending.take())
        news, last, now_s, counted = self._supervisor.news, session.last, self._clock(), 0
        if last is not None:
            # A forecast comes from another process, so it surely includes orders from before the last report.
            counted = session.num_seen if news.forecast is not last.forecast else last.counted
        session.reported_s, session.num_seen = now_s, session.num_batches
        others: tuple[LiveRequest, ...] | None = None
        if now_s - session.others_s >= _OTHERS_S:
            session.others_s = now_s
            foreign = [live for live in self._replay.live if _session_of(live) is not session]
            snapshots = ((live.snapshot(now_s), wire.origin(live.request.id)) for live in foreign)
            others = tuple(msgspec.structs.replace(snapshot, id=name) for snapshot, name in snapshots)
        held = news.held_blocks.since(session.held_version)
        session.held_version = held.version
        session.report(
            wire.HostReport(
                state=self.state,
                status=self.status(),
                info=news.info,
                kv=news.kv_stats,
                adapters=news.adapters.offered,
                forecast=news.forecast,
                held=held if held.is_whole or held.saved or held.dropped else None,
                counted=counted,
                others=others,
            )
        )

    def _forget(self, session: HostSession) -> None:
        session.end()
        self._spending.add(session.spending.take())  # it has ended before that could go
        if self._sessions.get(session.lease_holder) is session:
            del self._sessions[session.lease_holder]
        if not self._sessions:
            self._has_no_sessions.set()
        abandoned = [live.request.id for live in self._replay.live if _session_of(live) is session]
        self._replay.cancel(*abandoned)


def _session_of(live: AcceptedRequest) -> HostSession | None:
    return live.answer.session if isinstance(live.answer, SessionRelay) else None


_HELLO_S = 5.0
_HELLO_BYTES = 4096
_hello = msgspec.msgpack.Decoder(wire.SessionHello)


class ReplicaDoor:
    """A connection that sends the token is a session, and ends with it."""

    def __init__(self, host: ReplicaHost, *, sending_s: float) -> None:
        self._host = host
        self._sending_s = sending_s
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self, address: str, *, tls: ssl.SSLContext | None = None) -> wire.DoorAddress:
        loop = asyncio.get_running_loop()
        stream = partial(
            wire.FrameStream, most_bytes=_HELLO_BYTES, patience_s=self._sending_s, opened=self._opened
        )
        self._server = await loop.create_server(stream, address, 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return wire.DoorAddress(address, port, self._token)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _opened(self, stream: wire.FrameStream) -> None:
        visit = asyncio.create_task(self._visit(stream))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, stream: wire.FrameStream) -> None:
        hello = None
        try:
            with contextlib.suppress(TimeoutError, msgspec.MsgspecError), anyio.fail_after(_HELLO_S):
                hello = _hello.decode(await stream.receive() or b"")
            if hello is not None and hmac.compare_digest(hello.token.encode(), self._token.encode()):
                stream.trust()
                await self._serve(stream, hello.lease_holder)
            else:
                logger.warning("a client has connected without the token of this replica")
        finally:
            stream.close()

    async def _serve(self, stream: wire.FrameStream, lease_holder: str) -> None:
        sending = asyncio.create_task(self._send_news(stream, lease_holder))
        listening = asyncio.create_task(self._listen(stream, lease_holder))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, listening):
                task.cancel()
            for end in await asyncio.gather(sending, listening, return_exceptions=True):
                if isinstance(end, Exception):
                    logger.error("a session has failed", exc_info=end)

    async def _send_news(self, stream: wire.FrameStream, lease_holder: str) -> None:
        async with aclosing(self._host.attend(lease_holder)) as news:  # type: ignore[type-var]
            async for payload in news:
                stream.send(wire.NewsFrame.NEWS, payload)
                await stream.sent()
        stream.send(wire.NewsFrame.END)

    async def _listen(self, stream: wire.FrameStream, lease_holder: str) -> None:
        while (orders := await stream.receive()) is not None:
            is_taken = await self._host.send_orders(lease_holder, orders)
            stream.send(wire.NewsFrame.TAKEN if is_taken else wire.NewsFrame.UNKNOWN)
