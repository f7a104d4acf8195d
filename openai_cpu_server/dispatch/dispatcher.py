"""The `Engine` that the API knows, in front of an engine process of this server's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from openai_cpu_server.contract.adapter import Adapter, AdapterStatus
from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import (
    EngineState,
    EngineStatus,
    LiveRequest,
    RequestState,
    SeeStep,
    unavailable,
)
from openai_cpu_server.contract.messages import ClearCache, KVStats, ModelLoading
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.replica import Forecast, HeldUpdate
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.dispatch.process.supervisor import Supervisor
from openai_cpu_server.dispatch.requests.admission import QueueLimit, check_embeds, check_generates
from openai_cpu_server.dispatch.requests.culprits import Culprits
from openai_cpu_server.dispatch.requests.delivery import Totals
from openai_cpu_server.dispatch.requests.embedding import Embedding
from openai_cpu_server.dispatch.requests.generation import Generation
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.dispatch.requests.replay import Replay
from openai_cpu_server.dispatch.residency import Residency
from openai_cpu_server.errors import (
    GenerationFailed,
    RequestCancelled,
)

_DRAIN_LOOK_S = 0.05
_ABOUT_TO_END = "the server is about to end"


class Dispatcher:
    """Accepts requests within limits, and answers what becomes of them. An `Engine`.

    `supervisor` keeps the process alive; `Replay` carries requests and events to and fro. All methods belong
    to one event loop's thread.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        max_queue: int,
        max_held_bytes: int = 4 * 1024 * 1024,
        culprits: Culprits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_queue` requests of each priority may wait. `max_held_bytes` is for each API call: events that
        its client has not taken. `culprits`: those of all engines; None: it is the only one."""
        self.on_wanted: Callable[[], None] | None = None
        """Called where a request needs an engine that is not loaded: it must see to it that this one is
        woken, or raise what the request fails with. None: such requests are refused."""
        self._supervisor = supervisor
        self._culprits = culprits or Culprits(clock)
        self._replay = Replay(clock, supervisor.adapters.free, self._culprits)
        supervisor.adapters.is_used = self._replay.uses_adapter
        self._queue = QueueLimit(self._replay.live, max_queue=max_queue, clock=clock)
        self.residency = Residency(supervisor, self._replay, self.status)
        self._max_held_bytes = max_held_bytes
        self._clock = clock
        self._is_draining = False

    # -- an `Engine` -------------------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo | None:
        return self._supervisor.info

    @property
    def state(self) -> EngineState:
        state = self._supervisor.state
        is_alive = state in (EngineState.READY, EngineState.RESTARTING, EngineState.ASLEEP)
        return EngineState.DRAINING if self._is_draining and is_alive else state

    @property
    def is_ending(self) -> bool:
        return self._is_draining or self._supervisor.state is EngineState.STOPPED

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        info = self._serving()
        check_generates(info)
        self._culprits.check(requests[0].account)
        self._queue.check(requests[0].priority, len(requests))
        requests = self._with_adapter(requests)
        generation = Generation(
            requests, cancel=self._replay.cancel, clock=self._clock, max_held_bytes=self._max_held_bytes
        )
        self._replay.accept([Live(request, generation, self._clock()) for request in requests])
        self._supervisor.request_came(requests[0].priority)
        if self.state in (EngineState.ASLEEP, EngineState.LOADING):
            generation.wait_for_model(ModelLoading(self._supervisor.start.loaded))
        return generation

    def embed(self, request: EmbedRequest) -> Embedding:
        info = self._serving()
        check_embeds(info, request)
        self._culprits.check(request.account)
        self._queue.check(request.priority, 1)
        embedding = Embedding(request, cancel=self._replay.cancel, clock=self._clock)
        self._replay.accept([Live(request, embedding, self._clock())])
        self._supervisor.request_came(request.priority)
        return embedding

    def cancel(self, name: str) -> bool:
        call = self._replay.live.call_of(name)
        self._replay.cancel(*[live.request.id for live in call])
        self._replay.fail(call, lambda: RequestCancelled("The request was cancelled on the server."))
        return bool(call)

    def requests(self) -> list[LiveRequest]:
        now_s = self._clock()
        return [live.snapshot(now_s) for live in self._replay.live]

    def status(self) -> EngineStatus:
        supervisor, live = self._supervisor, self._replay.live
        kv, has_failed = supervisor.kv_stats, supervisor.state is EngineState.FAILED
        return EngineStatus(
            state=self.state,
            reason=_ABOUT_TO_END if self._is_draining and not has_failed else supervisor.reason,
            loaded=1.0 if self._is_loaded else supervisor.start.loaded,
            timed=supervisor.start.timed,
            running=live.count(RequestState.RUNNING),
            waiting=live.count(RequestState.WAITING),
            kv_tokens=self.info.kv_tokens if self.info else 0,
            kv_tokens_used=kv.pool_tokens_used if kv else 0,
            restarts=supervisor.restarts,
            last_death=supervisor.last_death,
            deaths=supervisor.deaths,
            rss_bytes=supervisor.rss_bytes,
            engine_rss_bytes=supervisor.engine_rss_bytes,
            kernels=self.info.kernels.described if self.info else {},
        )

    def kv_stats(self) -> KVStats | None:
        return self._supervisor.kv_stats

    def show_steps(self, see: SeeStep) -> None:
        self._supervisor.show_steps(see)

    def hide_steps(self) -> None:
        self._supervisor.hide_steps()

    def clear_cache(self) -> None:
        if self.state is not EngineState.READY:
            raise unavailable(self.status())
        self._supervisor.send(ClearCache())

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return self._supervisor.adapters.shelf.offered

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        self._serving()  # a model that sleeps is woken
        return await self._supervisor.adapters.load(adapter)

    def unload_adapter(self, name: str) -> bool:
        return self._supervisor.adapters.unload(name)

    # -- for whoever chooses between several ---------------------------------------------------------------

    @property
    def forecast(self) -> Forecast | None:
        """What newcomers may expect; None where `EngineOptions.tells_forecast` is off, or nothing has run."""
        return self._supervisor.forecast

    def held_since(self, version: int | None) -> HeldUpdate:
        """What of prompts the engine holds, as it has changed since this version; None: all."""
        return self._supervisor.held_blocks.since(version)

    # -- for whoever runs it -----------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        return self._replay.totals

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    async def run(self) -> None:
        """Serve until `close`. Raises `StartupError` if the first engine process cannot start."""
        await self._supervisor.run(self._replay)

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and give what runs or waits this long to end.

        Batch work that has not begun is refused at once: it can be sent again.
        """
        self._is_draining = True
        waiting = [live for live in self._replay.live if live.state is RequestState.WAITING]
        batch = [live for live in waiting if live.request.priority is Priority.BATCH]
        self._replay.cancel(*[live.request.id for live in batch])
        self._replay.fail(batch, lambda: unavailable(self.status()))
        deadline_s = self._clock() + seconds
        while self._replay.num_live and self._clock() < deadline_s:  # noqa: ASYNC110 (once in a server's life)
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def close(self) -> None:
        """End all requests and the process."""
        self._supervisor.stop()
        self._replay.end(lambda: GenerationFailed("The server is shutting down.", may_retry=True))
        await self._supervisor.wait_for_end()

    def kill(self) -> None:
        """For a `close` that is not to wait, not even if it waits already."""
        self._supervisor.kill()

    def _with_adapter(self, requests: Sequence[GenerationRequest]) -> Sequence[GenerationRequest]:
        """The requests with the key of their adapter in place of its name: what it is called by may change
        while they run. Raises `AdapterNotFound`."""
        name = requests[0].adapter
        if name is None:
            return requests
        key = self._supervisor.adapters.key_of(name)
        return [msgspec.structs.replace(request, adapter=key) for request in requests]

    @property
    def _is_loaded(self) -> bool:
        supervisor, not_loaded = self._supervisor, (EngineState.ASLEEP, EngineState.LOADING)
        return supervisor.info is not None and supervisor.state not in not_loaded

    def _serving(self) -> ModelInfo:
        """The facts about the model, which is wanted. Raises EngineUnavailable where nothing is accepted, or
        what `on_wanted` raises."""
        state, info = self.state, self.info
        if state in (EngineState.READY, EngineState.RESTARTING) and info is not None:
            return info
        is_ending = self._is_draining or state is EngineState.STOPPED
        if is_ending or self.on_wanted is None or info is None:
            raise unavailable(self.status())
        if state is not EngineState.LOADING:
            self.on_wanted()
        return info
