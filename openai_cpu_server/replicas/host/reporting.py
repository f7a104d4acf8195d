"""What a replica tells of itself, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest
from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.dispatch.process.supervisor import Supervisor
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.replicas.host.session import Session
from openai_cpu_server.replicas.wire import Report, origin

_BUSY_S, _IDLE_S = 0.25, 1.0
"""The longest silence while forecasts change, and while nothing does."""
_OTHERS_S = 1.0
"""How often the requests of others are told: there may be thousands."""


@dataclass
class _Told:
    """What a session was told last."""

    when_s: float
    state: EngineState
    forecast: Forecast | None
    reason: str | None
    counted: int = 0
    """The tellings that the next new forecast has counted: those before the present one came."""
    num_seen: int = 0
    others_s: float = float("-inf")
    """When it was told the requests of others."""


class Reporting:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, _Told] = {}

    def is_due(self, session: Session, supervisor: Supervisor) -> bool:
        if session.is_behind:
            return False
        told = self._told.get(session.lessee)
        if told is None or (told.state, told.reason) != (supervisor.state, supervisor.reason):
            return True
        has_news = supervisor.news.forecast is not told.forecast
        return self._clock() - told.when_s >= (_BUSY_S if has_news else _IDLE_S)

    def report(
        self, session: Session, supervisor: Supervisor, status: EngineStatus, others: Iterable[Live]
    ) -> Report:
        """`others`: the requests of other sessions. They are looked at when they are told."""
        held = supervisor.news.held_blocks.since(session.held_version)
        session.held_version = held.version
        return Report(
            state=supervisor.state,
            status=status,
            info=supervisor.news.info,
            kv=supervisor.news.kv_stats,
            adapters=supervisor.news.adapters.shelf.offered,
            forecast=supervisor.news.forecast,
            held=held if held.is_whole or held.saved or held.dropped else None,
            counted=self._note(session, supervisor),
            others=self._shown(session, others),
        )

    def _shown(self, session: Session, others: Iterable[Live]) -> tuple[LiveRequest, ...] | None:
        """None: they were told a moment ago."""
        told, now_s = self._told[session.lessee], self._clock()
        if now_s - told.others_s < _OTHERS_S:
            return None
        told.others_s = now_s
        return tuple(
            msgspec.structs.replace(live.snapshot(now_s), id=origin(live.request.id)) for live in others
        )

    def _note(self, session: Session, supervisor: Supervisor) -> int:
        """A forecast is made in another process: it has surely counted what was told a report earlier."""
        told = self._told.get(session.lessee)
        now = _Told(self._clock(), supervisor.state, supervisor.news.forecast, supervisor.reason)
        now.num_seen = session.num_told
        if told is not None:
            is_new = supervisor.news.forecast is not told.forecast
            now.counted = told.num_seen if is_new else told.counted
            now.others_s = told.others_s
        self._told[session.lessee] = now
        return now.counted

    def forget(self, session: Session) -> None:
        self._told.pop(session.lessee, None)
