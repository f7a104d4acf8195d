"""An `Engine` over replicas elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import (
    EngineState,
    EngineStatus,
    LastDeath,
    LiveRequest,
    RequestState,
    SeeStep,
    unavailable,
)
from openai_cpu_server.contract.media import MediaShape, MediaSize, require_senses
from openai_cpu_server.contract.messages import ClearCache, KVStats
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus, ModelInfo
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import EmbeddingAnswer, GenerationAnswer, RequestAdmission
from openai_cpu_server.engine_client.live import ServedTotals, names_of
from openai_cpu_server.engine_client.subscribers import MediaShapes
from openai_cpu_server.errors import GenerationFailed, InvalidRequest
from openai_cpu_server.replicas.remote.adapters import ReplicaAdapters
from openai_cpu_server.replicas.remote.proxy import ReplicaProxy
from openai_cpu_server.replicas.router import ReplicaRouter
from openai_cpu_server.replicas.wire import MOST_MEDIA_BYTES, CancelCall, HostReport, Order, ReplicaLink

_RESTART_STATES = (EngineState.RESTARTING, EngineState.LOADING)


@dataclass(eq=False)
class ReplicasOverview:
    proxy: ReplicaProxy
    clock: Callable[[], float]
    is_draining: bool = False
    is_closed: bool = False
    _last_info: ModelInfo | None = None

    @property
    def info(self) -> ModelInfo | None:
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
        wrong = [
            f"the replica {name}: {report.failure_reason}"
            for name, member in self.proxy.replicas.items()
            if (report := member.report) is not None and report.failure_reason is not None
        ]
        if not wrong and self.state in _RESTART_STATES and self.proxy.last_loss is not None:
            return self.proxy.last_loss[0]
        return "; ".join(wrong) or None

    @property
    def others(self) -> list[LiveRequest]:
        return [request for report in self._reports() for request in report.others or ()]

    def holders(self, name: str) -> list[str]:
        return [
            replica
            for replica, member in self.proxy.replicas.items()
            if any(name in names_of(one.id) for one in (member.report and member.report.others) or ())
        ]

    def status(self) -> EngineStatus:
        statuses, live = [report.status for report in self._reports()], self.proxy.requests.live
        sums = {name: sum(getattr(one, name) for one in statuses) for name in _SUMS}
        deaths = [status.last_death for status in statuses if status.last_death is not None]
        if (loss := self.proxy.last_loss) is not None:
            deaths.append(LastDeath(cause="replica_lost", message=loss[0], age_s=self.clock() - loss[1]))
        return EngineStatus(
            state=self.state,
            reason="the server is shutting down" if self.is_draining else self.reason,
            loaded=max((status.loaded for status in statuses), default=0.0),
            timed=None,
            running=live.count(RequestState.RUNNING),
            waiting=live.count(RequestState.WAITING),
            restarts=sum(status.restarts for status in statuses) + len(self.proxy.lost_replicas),
            last_death=min(deaths, key=lambda death: death.age_s, default=None),
            deaths=tuple(death for status in statuses for death in status.deaths),
            kernels=next((one.kernels for one in statuses if one.kernels), {}),
            placement=next((one.placement for one in statuses if one.placement), None),
            drafting=next((one.drafting for one in statuses if one.drafting), ()),
            draft_placement=next((one.draft_placement for one in statuses if one.draft_placement), None),
            is_throttled=any(status.is_throttled for status in statuses),
            **sums,
        )

    def kv_stats(self) -> KVStats | None:
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
        best: dict[str, AdapterStatus] = {}
        for status in (status for report in self._reports() for status in report.adapters):
            other = best.get(status.adapter.name)
            if other is None or _RANKS.index(status.state) < _RANKS.index(other.state):
                best[status.adapter.name] = status
        return tuple(best.values())

    def _reports(self) -> list[HostReport]:
        members = [one for one in self.proxy.replicas.values() if one.report is not None]
        staying = [one for one in members if not one.is_going] or members
        return [one.report for one in staying if one.report is not None]


_SUMS = ("kv_tokens", "kv_tokens_used", "rss_bytes", "engine_rss_bytes", "threads", "threads_computing")
_SIZES = ("block_tokens", "cache_block_tokens")
_RANKS = (AdapterState.READY, AdapterState.LOADING, AdapterState.FAILED)


def _shut_down() -> GenerationFailed:
    return GenerationFailed("The server is shutting down.", may_retry=True)


_RETRY_S = 1.0


class RemoteEngine:
    def __init__(
        self,
        *,
        max_queue: int,
        lease_s: float,
        max_held_bytes: int = 4 * 1024 * 1024,
        num_routers: int = 1,
        clock: Callable[[], float] = time.monotonic,
        random: Random | None = None,
        spent: Callable[[dict[str, float]], None] = lambda spent_ms: None,
    ) -> None:
        """`num_routers`: engines that share the replicas. `lease_s`: silence after which a replica ends our
        requests; `spent` receives CPU milliseconds by client label."""
        router = ReplicaRouter(random or Random(), num_routers=num_routers)
        self._proxy = ReplicaProxy(clock, router, lease_s=lease_s)
        self._requests = self._proxy.requests
        self._adapters = ReplicaAdapters(self._proxy.replicas, clock)
        self._shapes = MediaShapes()
        self._shapes.ready(self._send_all)
        self._proxy.on_report = self._reported
        self._proxy.on_measured = self._shapes.handle
        self._proxy.on_spent = spent
        self._overview = overview = ReplicasOverview(self._proxy, clock)
        self.status, self.kv_stats, self.adapters = overview.status, overview.kv_stats, overview.adapters
        self._admission = RequestAdmission(
            self._requests,
            self._requests.culprits,
            self.adapters,
            max_queue=max_queue,
            max_held_bytes=max_held_bytes,
            clock=clock,
        )
        self.stop, self.end_thinking = self._admission.stop, self._admission.end_thinking
        self._clock = clock

    # -- for its owner -----------------------------------------------------------------------------------

    @property
    def totals(self) -> ServedTotals:
        return self._requests.delivery.totals

    @property
    def last_use_s(self) -> float:
        return self._requests.delivery.last_use_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_S)
            self._proxy.retry()

    def set_replicas(self, links: Mapping[str, ReplicaLink]) -> None:
        """Requests of absent replicas move as soon as another is ready."""
        self._proxy.set_replicas(links)

    def drain(self) -> None:
        self._overview.is_draining = True

    async def close(self) -> None:
        self._overview.is_closed = True
        self._requests.end(_shut_down)
        self._shapes.end(_shut_down)
        self._proxy.close()

    # -- an `Engine` -------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo | None:
        return self._overview.info

    @property
    def state(self) -> EngineState:
        return self._overview.state

    @property
    def is_ending(self) -> bool:
        return self._overview.is_draining or self._overview.is_closed

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        for request in requests:
            if sum(len(item.content) for item in request.media_items) > MOST_MEDIA_BYTES:
                raise InvalidRequest("The pictures and sounds are too large to be sent to a replica.")
        return self._admission.generate(self._serving(), requests)

    def embed(self, request: EmbedRequest) -> EmbeddingAnswer:
        return self._admission.embed(self._serving(), request)

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        info = self._serving()
        require_senses(sizes, sees=info.sees, hears=info.hears)
        return await self._shapes.of(sizes)

    def cancel(self, name: str) -> bool:
        if self._admission.cancel(name):
            return True
        holders = self._overview.holders(name)
        for replica in holders:
            self._proxy.send(replica, CancelCall(name))
        return bool(holders)

    def requests(self) -> list[LiveRequest]:
        return self._requests.live.snapshots(self._clock()) + self._overview.others

    def show_steps(self, see: SeeStep) -> None:
        """Replicas do not report single steps."""

    def hide_steps(self) -> None: ...

    def clear_cache(self) -> None:
        if self.state is not EngineState.READY:
            raise unavailable(self.status())
        self._send_all(ClearCache())

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        self._serving()
        former = next((one.adapter for one in self.adapters() if one.adapter.name == adapter.name), None)
        status = await self._adapters.load(adapter, former)
        if status is None:
            raise unavailable(self.status())
        return status

    def unload_adapter(self, name: str) -> bool:
        keys = {status.adapter.key for status in self.adapters() if status.adapter.name == name}
        self._adapters.unload(name, keys)
        return bool(keys)

    # -- inside ------------------------------------------------------------------------------------------

    def _serving(self) -> ModelInfo:
        info = self.info
        if info is None or self.state not in (EngineState.READY, EngineState.RESTARTING):
            raise unavailable(self.status())
        return info

    def _send_all(self, order: Order) -> None:
        for replica in self._proxy.replicas:
            self._proxy.send(replica, order)

    def _reported(self, replica: str) -> None:
        self._adapters.reported(replica)
        self._shapes.ask_again(partial(self._proxy.send, replica))
