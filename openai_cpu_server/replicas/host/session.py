"""What one API process is told by a replica, and for how long it is believed to live."""

from __future__ import annotations

import asyncio

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.messages import Place, TokenEvent
from openai_cpu_server.replicas.host.spending import Spending
from openai_cpu_server.replicas.wire import Ended, News, Report


class Session:
    """Collects news until they are fetched: all of one step are fetched together."""

    def __init__(self, lessee: str, *, now_s: float) -> None:
        self.lessee = lessee
        self.renewed_s = now_s
        """When it was heard of last."""
        self.num_told = 0
        """How often it has told orders."""
        self.held_version: int | None = None
        """What it knows of the prompts that are held here."""
        self._report: Report | None = None
        self._started: dict[str, None] = {}
        self._places: dict[str, Place] = {}
        self._events: list[TokenEvent] = []
        self._embedded: list[Embedded] = []
        self._ended: list[Ended] = []
        self._spending = Spending()
        self._news = asyncio.Event()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    def end(self) -> None:
        """There are no more news for it."""
        self._is_over = True
        self._news.set()

    async def next(self) -> News | None:
        """What has come about; None: that was all."""
        await self._news.wait()
        if self._is_over:
            return None
        news = News(
            report=self._report,
            started=tuple(self._started),
            places=tuple(self._places.values()),
            events=tuple(self._events),
            embedded=tuple(self._embedded),
            ended=tuple(self._ended),
            spent_ms=self._spending.take(),
        )
        self._report = None
        for collected in (self._started, self._places, self._events, self._embedded, self._ended):
            collected.clear()
        self._news.clear()
        return news

    # -- what comes about ----------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """The report before is not fetched yet. What has changed since the one before that is only there."""
        return self._report is not None

    def report(self, report: Report) -> None:
        self._report = report
        self._news.set()

    def spend(self, spent_ms: dict[str, float]) -> None:
        """It goes with the next news."""
        self._spending.add(spent_ms)

    def unspent(self) -> dict[str, float]:
        """What did not go, for it has ended before."""
        return self._spending.take()

    def start(self, request_id: str) -> None:
        self._started[request_id] = None
        self._places.pop(request_id, None)
        self._news.set()

    def wait_at(self, place: Place) -> None:
        self._places[place.id] = place
        self._started.pop(place.id, None)
        self._news.set()

    def tokens(self, event: TokenEvent) -> None:
        self._events.append(event)
        self._news.set()

    def vectors(self, event: Embedded) -> None:
        self._embedded.append(event)
        self._news.set()

    def ended(self, end: Ended) -> None:
        self._ended.append(end)
        self._news.set()
