"""Engines on several NUMA nodes behind one `Engine`, for `--numa`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus
from openai_cpu_server.contract.media import MediaShape, MediaSize
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus, ModelInfo
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import EmbeddingAnswer, GenerationAnswer
from openai_cpu_server.engine_client.child import resident_bytes
from openai_cpu_server.engine_client.live import ServedTotals
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.replicas.host.host import ReplicaHost
from openai_cpu_server.replicas.remote.engine import RemoteEngine

_LEASE_S = 60.0
"""Both sides are in one process, so neither is lost without the other."""
_DRAIN_LOOK_S, _REVIVE_LOOK_S = 0.05, 1.0
_REVIVE_S = 30.0
_BEST_FIRST = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.ASLEEP,
    EngineState.FAILED,
    EngineState.STOPPED,
)


@dataclass(eq=False)
class NodeResidency:
    supervisors: Sequence[Supervisor]
    engine: RemoteEngine
    status: Callable[[], EngineStatus]

    @property
    def process_state(self) -> EngineState:
        return min((one.state for one in self.supervisors), key=_BEST_FIRST.index)

    @property
    def has_requests(self) -> bool:
        return bool(self.engine.requests())

    @property
    def is_at_work(self) -> bool:
        return self.has_requests

    @property
    def last_use_s(self) -> float:
        return self.engine.last_use_s

    @property
    def failed_s(self) -> float | None:
        """Time at which the last node failed, or None."""
        failed = [one.failed_s for one in self.supervisors if one.failed_s is not None]
        return max(failed) if len(failed) == len(self.supervisors) else None

    def wake(self) -> None:
        for one in self.supervisors:
            if one.state in (EngineState.ASLEEP, EngineState.FAILED):
                one.wake()

    async def settled(self) -> EngineState:
        await asyncio.gather(*(one.settled() for one in self.supervisors))
        return self.process_state

    async def sleep(self) -> None:
        assert not self.has_requests, "it has requests"
        await asyncio.gather(*(one.sleep() for one in self.supervisors))

    def fail(self, reason: str) -> None:
        for one in self.supervisors:
            one.fail(reason)

    def hold_back(self) -> None:
        """Do nothing: no other model needs the memory."""

    def release(self) -> None: ...


class NodeEngines:
    def __init__(self, supervisors: Mapping[str, Supervisor], *, max_queue: int, max_held_bytes: int) -> None:
        self.on_wanted: Callable[[], None] | None = None
        self._supervisors = list(supervisors.values())
        self._hosts = {node: ReplicaHost(one, lease_s=_LEASE_S) for node, one in supervisors.items()}
        self._engine = engine = RemoteEngine(
            max_queue=max_queue, lease_s=_LEASE_S, max_held_bytes=max_held_bytes
        )
        self.residency = NodeResidency(self._supervisors, engine, self.status)
        self.cancel, self.requests = engine.cancel, engine.requests
        self.stop, self.end_thinking = engine.stop, engine.end_thinking
        self.kv_stats, self.clear_cache = engine.kv_stats, engine.clear_cache
        self.adapters, self.unload_adapter = engine.adapters, engine.unload_adapter
        self.show_steps, self.hide_steps = engine.show_steps, engine.hide_steps

    # -- an `Engine` -------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo | None:
        return next((one.news.info for one in self._supervisors if one.news.info is not None), None)

    @property
    def state(self) -> EngineState:
        state = self.residency.process_state
        is_ahead = state is EngineState.READY  # the remote engine learns of it within a quarter of a second
        return self._engine.state if is_ahead or self._engine.is_ending else state

    @property
    def is_ending(self) -> bool:
        return self._engine.is_ending

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        self._want()
        return self._engine.generate(requests)

    def embed(self, request: EmbedRequest) -> EmbeddingAnswer:
        self._want()
        return self._engine.embed(request)

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        self._want()
        return await self._engine.shapes(sizes)

    def status(self) -> EngineStatus:
        nodes = {node: host.status() for node, host in self._hosts.items()}
        engines_bytes = sum(one.engine_rss_bytes for one in nodes.values())
        return msgspec.structs.replace(
            self._engine.status(),
            state=self.state,
            rss_bytes=resident_bytes() + engines_bytes,
            engine_rss_bytes=engines_bytes,
            nodes=nodes,
        )

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        self._want()
        return await self._engine.load_adapter(adapter)

    # -- for its owner -----------------------------------------------------------------------------------

    @property
    def totals(self) -> ServedTotals:
        return self._engine.totals

    async def run(self) -> None:
        self._engine.set_replicas(self._hosts)
        hosts = [asyncio.create_task(host.run()) for host in self._hosts.values()]
        others = [asyncio.create_task(work) for work in (self._engine.run(), self._revive())]
        try:
            await asyncio.gather(*hosts)
        finally:
            for task in (*hosts, *others):
                task.cancel()

    async def drain(self, seconds: float) -> None:
        self._engine.drain()
        deadline_s = time.monotonic() + seconds
        while self._engine.requests() and time.monotonic() < deadline_s:  # noqa: ASYNC110 (once in a life)
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def close(self) -> None:
        await self._engine.close()
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    def kill(self) -> None:
        for one in self._supervisors:
            one.kill()

    def _want(self) -> None:
        is_away = self.residency.process_state in (EngineState.ASLEEP, EngineState.FAILED)
        if is_away and not self._engine.is_ending and self.on_wanted is not None:
            self.on_wanted()

    async def _revive(self) -> None:
        while True:
            await asyncio.sleep(_REVIVE_LOOK_S)
            for one in self._supervisors if self.residency.failed_s is None else ():
                if one.failed_s is not None and time.monotonic() - one.failed_s > _REVIVE_S:
                    one.wake()
