"""News that a replica collects for one API process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.media import MeasuredMedia
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace, StepFigures, TokenEvent
from openai_cpu_server.engine_client.live import AnswerSink
from openai_cpu_server.errors import GenerationFailed, RequestCancelled, ServerError
from openai_cpu_server.replicas.wire import EndReason, HostReport, ReplicaNews, RequestEnd


class CpuSpending:
    """`EngineObserver` of CPU time. Any API process may report an amount, because they share one account,
    but only one may."""

    def __init__(self) -> None:
        self._spent_ms: dict[str, float] = {}

    def step_done(self, figures: StepFigures) -> None:
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
    """Collects news until it is fetched, so that all news of a step goes together."""

    lease_holder: str
    renewed_s: float
    num_batches: int = 0
    """Number of order batches received."""
    held_version: int | None = None
    spending: CpuSpending = field(default_factory=CpuSpending)
    _report: HostReport | None = None
    _started: dict[str, None] = field(default_factory=dict)
    _places: dict[str, QueuePlace] = field(default_factory=dict)
    _events: list[TokenEvent] = field(default_factory=list)
    _embedded: list[Embedded] = field(default_factory=list)
    _ended: list[RequestEnd] = field(default_factory=list)
    _measured: list[MeasuredMedia] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _is_over: bool = False

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    async def next(self) -> ReplicaNews | None:
        """Return the collected news, or None when the session has ended."""
        await self._news.wait()
        if self._is_over:
            return None
        news = ReplicaNews(
            report=self._report,
            started=tuple(self._started),
            places=tuple(self._places.values()),
            events=tuple(self._events),
            embedded=tuple(self._embedded),
            ended=tuple(self._ended),
            measured=tuple(self._measured),
            spent_ms=self.spending.take(),
        )
        self._report = None
        for sent in (self._events, self._embedded, self._ended, self._measured):
            sent.clear()
        self._started.clear()
        self._places.clear()
        self._news.clear()
        return news

    # -- what comes about ----------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """True until the last report is fetched. A new one would lose the changes of held prefixes in it."""
        return self._report is not None

    def report(self, report: HostReport) -> None:
        self._report = report
        self._news.set()

    def start(self, request_id: str) -> None:
        self._started[request_id] = None
        self._places.pop(request_id, None)
        self._news.set()

    def wait_at(self, place: QueuePlace) -> None:
        self._places[place.id] = place
        self._started.pop(place.id, None)
        self._news.set()

    def tell(self, news: TokenEvent | Embedded | RequestEnd | MeasuredMedia) -> None:
        match news:
            case TokenEvent():
                self._events.append(news)
            case Embedded():
                self._embedded.append(news)
            case RequestEnd():
                self._ended.append(news)
            case MeasuredMedia():
                self._measured.append(news)
        self._news.set()


@dataclass(eq=False)
class SessionRelay(AnswerSink):
    """Forwards the events of one request. `serves` returns True while the engine can run other requests."""

    request_id: str
    session: HostSession
    serves: Callable[[], bool]
    _is_running: bool = False

    def start(self) -> None:
        if not self._is_running:
            self._is_running = True
            self.session.start(self.request_id)

    def wait_at(self, place: QueuePlace | ModelLoading) -> None:
        if isinstance(place, QueuePlace):  # who chooses between replicas knows which of them load
            self._is_running = False
            self.session.wait_at(place)

    def push(self, event: TokenEvent | Embedded) -> None:
        self.session.tell(event)

    def fail(self, request_id: str, error: ServerError) -> None:
        is_to_blame = isinstance(error, GenerationFailed) and not error.may_retry and self.serves()
        why = EndReason.FAILED if is_to_blame else EndReason.RETURNED
        if isinstance(error, RequestCancelled):
            why = EndReason.CANCELLED
        self.session.tell(RequestEnd(request_id, why, str(error)))
