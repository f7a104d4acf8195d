"""An engine replica: one engine process, and the sessions of the API processes that it computes for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from openai_cpu_server.contract.adapter import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.contract.messages import Cancel, ClearCache, Submit
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.process.supervisor import Supervisor
from openai_cpu_server.dispatch.requests.admission import end_cancelled
from openai_cpu_server.dispatch.requests.culprits import Culprits
from openai_cpu_server.dispatch.requests.live import Live, names_of
from openai_cpu_server.dispatch.requests.replay import Replay
from openai_cpu_server.errors import ServerError
from openai_cpu_server.replicas.host.relay import TokenRelay, VectorRelay
from openai_cpu_server.replicas.host.reporting import Reporting
from openai_cpu_server.replicas.host.session import Session
from openai_cpu_server.replicas.host.spending import Spending
from openai_cpu_server.replicas.wire import (
    CancelCall,
    DropAdapter,
    Ended,
    Order,
    Renew,
    Why,
    encode_news,
    origin,
    read_orders,
)

logger = logging.getLogger(__name__)

TICK_S = 0.25
"""How often leases are looked at, and whether there is something to report."""
_SERVING = (EngineState.READY, EngineState.RESTARTING, EngineState.LOADING)


class Host:
    """All methods belong to one event loop's thread. An API process that is silent for `lease_s` is taken to
    be gone, or cut off: what it has ordered is ended, for another replica computes it by now."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        lease_s: float,
        spending: Spending | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`supervisor`: it sleeps. `spending`: its observer; None: it is not told what the engine spends."""
        self._supervisor = supervisor
        self._adapters = supervisor.news.adapters
        self._lease_s = lease_s
        self._clock = clock
        self._replay = Replay(clock, self._adapters.free, Culprits(clock))
        self._adapters.is_used = self._replay.uses_adapter
        self._sessions: dict[str, Session] = {}
        self._has_no_sessions = asyncio.Event()
        self._has_no_sessions.set()
        self._reporting = Reporting(clock)
        self._spending = spending or Spending()

    # -- for whoever runs it -----------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._supervisor.state

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    @property
    def num_live(self) -> int:
        """Requests that it computes, or that wait here."""
        return self._replay.num_live

    async def run(self) -> None:
        """Load the model and serve, until `close`. A model that cannot be loaded is a state."""
        if self._supervisor.state is EngineState.ASLEEP:
            self._supervisor.wake()
        ticking = asyncio.create_task(self._tick())
        try:
            await self._supervisor.run(self._replay)
        finally:
            ticking.cancel()

    async def settled(self) -> EngineState:
        """The state that loading leads to, once it is over."""
        return await self._supervisor.settled()

    async def left(self) -> None:
        """Wait until no API process wants anything of it any more."""
        await self._has_no_sessions.wait()

    async def close(self) -> None:
        """End all sessions and the process. What they had ordered is computed elsewhere."""
        for session in list(self._sessions.values()):
            self._forget(session)
        self._supervisor.stop()
        await self._supervisor.wait_for_end()

    # -- for API processes -------------------------------------------------------------------------------

    async def attend(self, lessee: str) -> AsyncIterator[bytes]:
        """News for the API process that calls itself so. It ends with the lease; whoever stops reading gives
        it up."""
        session = Session(lessee, now_s=self._clock())
        self._sessions[lessee] = session
        self._has_no_sessions.clear()
        self._report(session)
        try:
            while (news := await session.next()) is not None:
                yield encode_news(news)
        finally:
            self._forget(session)

    def tell(self, lessee: str, orders: bytes) -> bool:
        """False: there is no such lessee (any more)."""
        session = self._sessions.get(lessee)
        if session is None:
            return False
        session.renewed_s = self._clock()
        session.num_told += 1
        read = read_orders(orders)
        self._submit(session, [order for order in read if isinstance(order, Submit)])
        for order in read:
            self._follow(order)
        return True

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """Its status afterwards: ready, or refused with a reason."""
        try:
            return await self._adapters.load(adapter)
        except ServerError as error:
            return AdapterStatus(adapter=adapter, state=AdapterState.FAILED, reason=str(error))

    # -- inside ------------------------------------------------------------------------------------------

    def _submit(self, session: Session, submitted: Iterable[Submit]) -> None:
        taken = []
        for one in submitted:
            if self._can_compute(one.request):
                taken.append(self._live(session, one))
            else:
                session.ended(Ended(one.request.id, Why.RETURNED, "This replica cannot compute it."))
        if taken:
            self._replay.accept(taken)

    def _live(self, session: Session, one: Submit) -> Live:
        relay = VectorRelay if isinstance(one.request, EmbedRequest) else TokenRelay
        return Live(
            one.request,
            relay(one.request.id, session, self._serves),
            self._clock(),
            output=list(one.output),
            num_embedded=one.num_embedded,
        )

    def _can_compute(self, request: GenerationRequest | EmbedRequest) -> bool:
        if not self._serves():
            return False
        key = request.adapter if isinstance(request, GenerationRequest) else None
        status = self._adapters.shelf.status(key) if key is not None else None
        return key is None or (status is not None and status.state is not AdapterState.FAILED)

    def _serves(self) -> bool:
        return self._supervisor.state in _SERVING

    def _follow(self, order: Order) -> None:
        match order:
            case Cancel(id=request_id):
                self._replay.cancel(request_id)
            case CancelCall(name=name):
                self._cancel_call(name)
            case ClearCache():
                self._supervisor.send(order)
            case DropAdapter(name=name):
                self._adapters.unload(name)
            case Renew() | Submit():
                pass

    def _cancel_call(self, name: str) -> None:
        call = [live for live in self._replay.live if name in names_of(origin(live.request.id))]
        end_cancelled(self._replay, call)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for session in list(self._sessions.values()):
                if self._clock() - session.renewed_s > self._lease_s:
                    logger.warning(
                        "an API process was silent for %.0f s: what it wants is ended", self._lease_s
                    )
                    self._forget(session)
                elif self._reporting.is_due(session, self._supervisor):
                    self._report(session)

    def _report(self, session: Session) -> None:
        session.spend(self._spending.take())
        session.report(
            self._reporting.report(session, self._supervisor, self._status(), self._others(session))
        )

    def _others(self, session: Session) -> Iterator[Live]:
        """The requests of other sessions."""
        return (live for live in self._replay.live if _session_of(live) is not session)

    def _forget(self, session: Session) -> None:
        """It has left, or is taken to have: nobody wants its requests."""
        session.end()
        self._spending.add(session.unspent())
        self._reporting.forget(session)
        if self._sessions.get(session.lessee) is session:
            del self._sessions[session.lessee]
        if not self._sessions:
            self._has_no_sessions.set()
        abandoned = [live.request.id for live in self._replay.live if _session_of(live) is session]
        self._replay.cancel(*abandoned)

    def _status(self) -> EngineStatus:
        return self._supervisor.status(self._replay.live.count)


def _session_of(live: Live) -> Session | None:
    return live.answer.session if isinstance(live.answer, TokenRelay | VectorRelay) else None
