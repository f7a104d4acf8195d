"""An `Engine` over replicas elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

from openai_cpu_server.contract.adapter import Adapter, AdapterStatus
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest, SeeStep, unavailable
from openai_cpu_server.contract.messages import ClearCache, KVStats
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.admission import RequestAdmission
from openai_cpu_server.engine_client.answers import EmbeddingAnswer, GenerationAnswer
from openai_cpu_server.engine_client.live import ServedTotals
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.replicas.remote.adapters import ReplicaAdapters
from openai_cpu_server.replicas.remote.carrier import ReplicaCarrier
from openai_cpu_server.replicas.remote.overview import ReplicasOverview
from openai_cpu_server.replicas.report import ReplicaLink
from openai_cpu_server.replicas.router import ReplicaRouter
from openai_cpu_server.replicas.wire import CancelCall

_RETRY_S = 1.0
"""How often replicas are attended anew that were lost and are still said to be there."""


class RemoteEngine:
    """Accepts requests within limits, sends each to a replica, and replays what a replica leaves behind.

    All methods belong to one event loop's thread.
    """

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
        """`num_routers`: how many such engines share the replicas. `lease_s`: a replica that hears nothing of
        us for so long ends what we have ordered; we give it up after half of that. `spent` is told of the
        replicas' CPU time, in milliseconds, by the label of the client."""
        router = ReplicaRouter(random or Random(), num_routers=num_routers)
        self._carrier = ReplicaCarrier(clock, router, lease_s=lease_s)
        self._requests = self._carrier.requests
        self._adapters = ReplicaAdapters(self._carrier.replicas, clock)
        self._carrier.on_report = self._adapters.reported
        self._carrier.on_spent = spent
        self._overview = ReplicasOverview(self._carrier, clock)
        self._admission = RequestAdmission(
            self._requests,
            self._requests.culprits,
            self.adapters,
            max_queue=max_queue,
            max_held_bytes=max_held_bytes,
            clock=clock,
        )
        self._clock = clock

    # -- for whoever runs it -----------------------------------------------------------------------------

    @property
    def totals(self) -> ServedTotals:
        return self._requests.delivery.totals

    async def run(self) -> None:
        """Serve until it is cancelled."""
        while True:
            await asyncio.sleep(_RETRY_S)
            self._carrier.retry()

    def replicas_are(self, links: Mapping[str, ReplicaLink]) -> None:
        """All replicas that there are, by name. Those that it knows and that are gone are left: what they
        compute moves as soon as another is ready."""
        self._carrier.replicas_are(links)

    def drain(self) -> None:
        """Accept nothing more."""
        self._overview.is_draining = True

    async def close(self) -> None:
        """End all requests."""
        self._overview.is_closed = True
        self._requests.end(lambda: GenerationFailed("The server is shutting down.", may_retry=True))
        self._carrier.close()

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
        return self._admission.generate(self._serving(), requests)

    def embed(self, request: EmbedRequest) -> EmbeddingAnswer:
        return self._admission.embed(self._serving(), request)

    def cancel(self, name: str) -> bool:
        return self._admission.cancel(name) or self._cancel_elsewhere(name)

    def requests(self) -> list[LiveRequest]:
        return self._requests.live.snapshots(self._clock()) + self._overview.others

    def status(self) -> EngineStatus:
        return self._overview.status()

    def kv_stats(self) -> KVStats | None:
        return self._overview.kv_stats()

    def show_steps(self, see: SeeStep) -> None:
        """Replicas do not tell of single steps."""

    def hide_steps(self) -> None:
        """Nobody was told of any."""

    def clear_cache(self) -> None:
        if self.state is not EngineState.READY:
            raise unavailable(self.status())
        for replica in self._carrier.replicas:
            self._carrier.send(replica, ClearCache())

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return self._overview.adapters()

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
        """Raises EngineUnavailable where nothing is accepted."""
        info = self.info
        if info is None or self.state not in (EngineState.READY, EngineState.RESTARTING):
            raise unavailable(self.status())
        return info

    def _cancel_elsewhere(self, name: str) -> bool:
        """End a call of another API process; False: there is none either."""
        holders = self._overview.holders(name)
        for replica in holders:
            self._carrier.send(replica, CancelCall(name))
        return bool(holders)
