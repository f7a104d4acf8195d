"""All replicas of a model as one engine: its state, facts and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from openai_cpu_server.contract.adapter import AdapterState, AdapterStatus
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LastDeath, LiveRequest, RequestState
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.engine_client.live import names_of
from openai_cpu_server.replicas.remote.carrier import ReplicaCarrier
from openai_cpu_server.replicas.wire import HostReport

_RESTART_STATES = (EngineState.RESTARTING, EngineState.LOADING)


class ReplicasOverview:
    """Asked, it looks at what the replicas have reported last."""

    def __init__(self, carrier: ReplicaCarrier, clock: Callable[[], float]) -> None:
        self.is_draining = False
        self.is_closed = False
        self._carrier = carrier
        self._clock = clock
        self._last_info: ModelInfo | None = None

    @property
    def info(self) -> ModelInfo | None:
        """Those of a ready replica, else as they were last."""
        infos = [report.info for report in self._reports() if report.info is not None]
        if infos:
            self._last_info = infos[0]
        return self._last_info

    @property
    def state(self) -> EngineState:
        if self.is_closed:
            return EngineState.STOPPED
        states = {report.state for report in self._reports()}
        if self.is_draining:
            return EngineState.DRAINING
        if EngineState.READY in states:
            return EngineState.READY
        if states == {EngineState.FAILED}:
            return EngineState.FAILED
        return EngineState.LOADING if self.info is None else EngineState.RESTARTING

    @property
    def reason(self) -> str | None:
        """What is wrong with some replica, also where others serve; None: nothing is."""
        wrong = [
            f"the replica {name}: {known.report.reason_told}"
            for name, known in self._carrier.replicas.items()
            if known.report is not None and known.report.reason_told is not None
        ]
        if not wrong and self.state in _RESTART_STATES and self._carrier.last_loss is not None:
            return self._carrier.last_loss[0]
        return "; ".join(wrong) or None

    @property
    def others(self) -> list[LiveRequest]:
        """The requests of other API processes."""
        return [request for report in self._reports() for request in report.others or ()]

    def holders(self, name: str) -> list[str]:
        """The replicas that compute an API call of another API process, named by its id or a sequence's."""
        return [
            replica
            for replica, known in self._carrier.replicas.items()
            if known.report is not None and any(name in names_of(one.id) for one in known.report.others or ())
        ]

    def status(self) -> EngineStatus:
        statuses, live = [report.status for report in self._reports()], self._carrier.requests.live
        return EngineStatus(
            state=self.state,
            reason="the server is about to end" if self.is_draining else self.reason,
            loaded=max((status.loaded for status in statuses), default=0.0),
            timed=None,
            running=live.count(RequestState.RUNNING),
            waiting=live.count(RequestState.WAITING),
            kv_tokens=sum(status.kv_tokens for status in statuses),
            kv_tokens_used=sum(status.kv_tokens_used for status in statuses),
            restarts=sum(status.restarts for status in statuses) + len(self._carrier.lost_replicas),
            last_death=self._last_death(statuses),
            deaths=tuple(death for status in statuses for death in status.deaths),
            rss_bytes=sum(status.rss_bytes for status in statuses),
            engine_rss_bytes=sum(status.engine_rss_bytes for status in statuses),
            kernels=next((status.kernels for status in statuses if status.kernels), {}),
        )

    def kv_stats(self) -> KVStats | None:
        """Sums over the replicas."""
        parts = [report.kv for report in self._reports() if report.kv is not None]
        if not parts:
            return None
        sums = {
            name: sum(getattr(part, name) for part in parts)
            for name in KVStats.__struct_fields__
            if name not in _SIZES
        }
        return msgspec.structs.replace(parts[0], **sums)

    def adapters(self) -> tuple[AdapterStatus, ...]:
        """By name, as it stands with the replica where it stands best."""
        best: dict[str, AdapterStatus] = {}
        for status in (status for report in self._reports() for status in report.adapters):
            known = best.get(status.adapter.name)
            if known is None or _RANKS.index(status.state) < _RANKS.index(known.state):
                best[status.adapter.name] = status
        return tuple(best.values())

    def _reports(self) -> list[HostReport]:
        """Of the replicas that stay; of those that go, where no other is."""
        known = [one for one in self._carrier.replicas.values() if one.report is not None]
        staying = [one for one in known if not one.is_going] or known
        return [one.report for one in staying if one.report is not None]

    def _last_death(self, statuses: Iterable[EngineStatus]) -> LastDeath | None:
        deaths = [status.last_death for status in statuses if status.last_death is not None]
        if (loss := self._carrier.last_loss) is not None:
            deaths.append(LastDeath(cause="replica_lost", message=loss[0], age_s=self._clock() - loss[1]))
        return min(deaths, key=lambda death: death.age_s, default=None)


_SIZES = ("block_tokens", "cache_block_tokens")
_RANKS = (AdapterState.READY, AdapterState.LOADING, AdapterState.FAILED)
