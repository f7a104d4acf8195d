"""The API's `Engine` for a local process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import (
    EngineState,
    EngineStatus,
    LiveRequest,
    RequestState,
    unavailable,
)
from openai_cpu_server.contract.media import MediaShape, MediaSize, require_senses
from openai_cpu_server.contract.messages import ClearCache, KVStats, ModelLoading
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus, ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.engine_client.calls import EmbeddingAnswer, GenerationAnswer, RequestAdmission
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import ServedTotals
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import GenerationFailed


class Residency:
    def __init__(
        self, supervisor: Supervisor, replay: RequestReplay, status: Callable[[], EngineStatus]
    ) -> None:
        self.status = status
        self.wake, self.settled, self.fail = supervisor.wake, supervisor.settled, supervisor.fail
        self.hold_back, self.release = replay.hold_back, replay.release
        self._supervisor = supervisor
        self._replay = replay

    @property
    def process_state(self) -> EngineState:
        """State regardless of a shutdown of the server."""
        return self._supervisor.state

    @property
    def is_at_work(self) -> bool:
        return self._replay.is_pending

    @property
    def has_requests(self) -> bool:
        news = self._supervisor.news
        return self._replay.num_live > 0 or news.adapters.is_awaited or news.shapes.is_awaited

    @property
    def last_use_s(self) -> float:
        """Clock time of the last arrival or end, or of becoming ready."""
        return self._replay.delivery.last_use_s

    @property
    def failed_s(self) -> float | None:
        return self._supervisor.failed_s

    async def sleep(self) -> None:
        """New requests wait for the next process."""
        assert not self.is_at_work, "it has requests"
        self._replay.lost()
        await self._supervisor.sleep()


_DRAIN_LOOK_S = 0.05
_SHUTTING_DOWN = "the server is shutting down"


class EngineClient:
    def __init__(
        self,
        supervisor: Supervisor,
        *,
        max_queue: int,
        max_held_bytes: int = 4 * 1024 * 1024,
        culprits: CulpritLedger | None = None,
    ) -> None:
        """`max_queue`: waiting requests of each priority; `max_held_bytes`: unread events of each call.
        `culprits`: shared by all engines, or None if this is the only one."""
        self.on_wanted: Callable[[], None] | None = None
        """Called when a request needs an engine that is not loaded: wakes it, or raises the request's error.
        None: such requests are rejected."""
        clock = time.monotonic
        culprits = culprits or CulpritLedger(clock)
        self._supervisor = supervisor
        self._news, self._adapters = supervisor.news, supervisor.news.adapters
        self._replay = RequestReplay(clock, self._adapters.free, culprits)
        self._adapters.is_used = self._replay.uses_adapter
        self.show_steps, self.hide_steps = self._news.show_steps, self._news.hide_steps
        self.unload_adapter = self._adapters.unload
        self._admission = RequestAdmission(
            self._replay,
            culprits,
            self.adapters,
            max_queue=max_queue,
            max_held_bytes=max_held_bytes,
            clock=clock,
        )
        self.cancel, self.stop = self._admission.cancel, self._admission.stop
        self.end_thinking = self._admission.end_thinking
        self.residency = Residency(supervisor, self._replay, self.status)
        self._is_draining = False

    # -- an `Engine` -------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo | None:
        return self._news.info

    @property
    def state(self) -> EngineState:
        state = self._supervisor.state
        is_alive = state in (EngineState.READY, EngineState.RESTARTING, EngineState.ASLEEP)
        return EngineState.DRAINING if self._is_draining and is_alive else state

    @property
    def is_ending(self) -> bool:
        return self._is_draining or self._supervisor.state is EngineState.STOPPED

    def generate(self, requests: Sequence[GenerationRequest]) -> GenerationAnswer:
        generation = self._admission.generate(self._serving(), requests)
        self._news.request_came(requests[0].priority)
        if self.state in (EngineState.ASLEEP, EngineState.LOADING):
            generation.wait_at(ModelLoading(self._news.progress.loaded))
        return generation

    def embed(self, request: EmbedRequest) -> EmbeddingAnswer:
        embedding = self._admission.embed(self._serving(), request)
        self._news.request_came(request.priority)
        return embedding

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        info = self._serving()
        require_senses(sizes, sees=info.sees, hears=info.hears)
        return await self._news.shapes.of(sizes)

    def requests(self) -> list[LiveRequest]:
        return self._replay.live.snapshots(time.monotonic())

    def status(self) -> EngineStatus:
        status = self._supervisor.status(self._replay.live.count)
        is_about_to_end = self._is_draining and status.state is not EngineState.FAILED
        reason = _SHUTTING_DOWN if is_about_to_end else status.reason
        return msgspec.structs.replace(status, state=self.state, reason=reason)

    def kv_stats(self) -> KVStats | None:
        return self._news.kv_stats

    def clear_cache(self) -> None:
        if self.state in (EngineState.ASLEEP, EngineState.FAILED):
            self._supervisor.forget_cache_file()
            return
        if self.state is not EngineState.READY:
            raise unavailable(self.status())
        self._supervisor.send(ClearCache())

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return self._adapters.offered

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        self._serving()  # a model that sleeps is woken
        return await self._adapters.load(adapter)

    # -- for its owner -----------------------------------------------------------------------------------

    @property
    def totals(self) -> ServedTotals:
        return self._replay.delivery.totals

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    async def run(self) -> None:
        """Serve until the end. Raises `StartupError` if the first process cannot start."""
        await self._supervisor.run(self._replay)

    async def drain(self, seconds: float) -> None:
        """Reject new requests, and give the others this long to end. Waiting batch work is rejected at once,
        because it can be sent again."""
        self._is_draining = True
        waiting = [live for live in self._replay.live if live.state is RequestState.WAITING]
        batch = [live for live in waiting if live.request.priority is Priority.BATCH]
        self._replay.cancel(*[live.request.id for live in batch])
        self._replay.delivery.fail(batch, lambda: unavailable(self.status()))
        deadline_s = time.monotonic() + seconds
        while self._replay.num_live and time.monotonic() < deadline_s:  # noqa: ASYNC110 (once in a server's life)
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def close(self) -> None:
        self._supervisor.stop()
        self._replay.end(lambda: GenerationFailed("The server is shutting down.", may_retry=True))
        await self._supervisor.wait_for_end()

    def kill(self) -> None:
        self._supervisor.kill()

    def _serving(self) -> ModelInfo:
        """Request the loading of a model that is away. Raises EngineUnavailable, or the error of
        `on_wanted`."""
        state, info = self.state, self.info
        if state in (EngineState.READY, EngineState.RESTARTING) and info is not None:
            return info
        if self.is_ending or self.on_wanted is None or info is None:
            raise unavailable(self.status())
        if state is not EngineState.LOADING:
            self.on_wanted()
        return info
