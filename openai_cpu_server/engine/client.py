"""The asyncio side of the engine: starts the process, feeds it, and survives its death."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import psutil

from openai_cpu_server.contract.messages import (
    Cancel,
    ClearCache,
    EngineOptions,
    Event,
    KVStats,
    Loading,
    Place,
    QueueState,
    Ready,
    StartFailed,
    StepDone,
    StepStarted,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.engine.child import EngineProcess
from openai_cpu_server.engine.generation import Generation
from openai_cpu_server.engine.live import Live, LiveRequest, RequestState
from openai_cpu_server.engine.recovery import LiveRequests
from openai_cpu_server.engine.state import EngineState, EngineStatus, Totals
from openai_cpu_server.errors import (
    EngineUnavailable,
    GenerationFailed,
    QueueFull,
    RequestCancelled,
    ServerError,
    StartupError,
)

logger = logging.getLogger(__name__)

_MAX_CRASHES_A_MINUTE = 5
_FIRST_BACKOFF_S = 0.1


class EngineClient:
    """Owns the engine process and every live request. All methods belong to one event loop's thread.

    `command` starts the engine; the number of its socket's file descriptor is appended.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: EngineOptions,
        *,
        max_queue: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.totals = Totals()
        self.info: ModelInfo | None = None
        self.loading_fraction = 0.0
        self.reason: str | None = None
        self._command = tuple(command)
        self._options = options
        self._max_queue = max_queue
        self._clock = clock
        self._state = EngineState.LOADING
        self._live = LiveRequests()
        self._process: EngineProcess | None = None
        self._crash_times: deque[float] = deque(maxlen=_MAX_CRASHES_A_MINUTE)
        self._restarts = 0
        self._kv_stats: KVStats | None = None

    # -- for the API -----------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._state

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Submit the sequences of one API call. Raises `EngineUnavailable` or `QueueFull`; never blocks."""
        self._check_open()
        self._check_queue(requests[0].priority, len(requests))
        generation = Generation(requests, cancel=self._cancel, clock=self._clock)
        choices = [Live(request, generation, self._clock()) for request in requests]
        for live in choices:
            self._live.add(live)
        self._submit(choices)
        self.totals.requests += 1
        self.totals.prompt_tokens += sum(map(len, {request.tokens for request in requests}))
        return generation

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self._state,
            reason=self.reason,
            running=self._live.count(RequestState.RUNNING),
            waiting=self._live.count(RequestState.WAITING),
            kv_tokens=self.info.kv_tokens if self.info else 0,
            kv_tokens_used=self._kv_stats.pool_tokens_used if self._kv_stats else 0,
            restarts=self._restarts,
            rss_bytes=self._rss_bytes(),
        )

    def kv_stats(self) -> KVStats | None:
        """As of the last step; None while this engine process has not made any."""
        return self._kv_stats

    def clear_cache(self) -> None:
        """Drop all of the prefix cache but what is pinned, with the next step. Raises `EngineUnavailable`."""
        if self._process is None or self._state is not EngineState.READY:
            raise self._unavailable()
        self._process.send(ClearCache())

    def requests(self) -> list[LiveRequest]:
        """All that live, in the order of their arrival."""
        now_s = self._clock()
        return [live.snapshot(now_s) for live in self._live]

    def cancel(self, name: str) -> bool:
        """End an API call, named by its id or by that of one of its sequences; False if there is none.

        Whoever reads its generation gets `RequestCancelled`.
        """
        call = self._live.call_of(name)
        for live in call:
            self._cancel(live.request.id)
        self._fail(call, "The request was cancelled on the server.", RequestCancelled)
        return bool(call)

    @property
    def engine_pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _check_open(self) -> None:
        if self._state in (EngineState.READY, EngineState.RESTARTING):
            return
        raise self._unavailable()

    def _unavailable(self) -> EngineUnavailable:
        return EngineUnavailable(f"The engine is {self._state.value}: {self.reason or 'no requests yet'}.")

    def _check_queue(self, priority: Priority, num_new: int) -> None:
        waiting = self._live.count(RequestState.WAITING)[priority.label]
        if waiting + num_new > self._max_queue:
            raise QueueFull(waiting, retry_after_s=1)

    def _rss_bytes(self) -> int:
        engine = self._process.rss_bytes if self._process else 0
        return engine + int(psutil.Process().memory_info().rss)

    def _cancel(self, request_id: str) -> None:
        self._live.remove(request_id)
        if self._process is not None:
            self._process.send(Cancel(id=request_id))

    def _submit(self, requests: Sequence[Live]) -> None:
        """Without a ready engine they wait in `_live` for the next one."""
        if self._process is not None and self._state is EngineState.READY:
            self._process.send(*[live.submit() for live in requests])

    # -- the process's life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep an engine alive until `close`. Raises `StartupError` if the first one cannot start."""
        while self._is_wanted():
            exit_status = await self._live_once()
            if self._is_wanted():
                await self._crashed(exit_status)

    async def close(self) -> None:
        """End all requests and the process."""
        self._move(EngineState.STOPPED)
        self._fail(list(self._live), "The server is shutting down.")
        if self._process is not None:
            await self._process.close()

    def _is_wanted(self) -> bool:
        return self._state not in (EngineState.STOPPED, EngineState.FAILED)

    async def _live_once(self) -> int | None:
        """One engine process from spawn to death; returns its exit status."""
        process = self._process = await EngineProcess.spawn(self._command, self._options)
        try:
            while (event := await process.receive()) is not None:
                self._handle(event)
        finally:
            self._process = None
            await process.close()
        return process.exit_status

    def _handle(self, event: Event) -> None:
        match event:
            case StepDone(events=events, kv=kv):
                self._kv_stats = kv
                for token_event in events:
                    self._deliver(token_event)
                self._try_suspect()
            case StepStarted(ids=ids):
                for live in self._live.computing(ids):
                    live.generation.start()
            case QueueState(places=places):
                self._tell_places(places)
            case Loading(fraction=fraction):
                self._loading(fraction)
            case Ready(info=info):
                self._ready(info)
            case StartFailed(message=message):
                self._start_failed(message)

    def _deliver(self, event: TokenEvent) -> None:
        live = self._live.get(event.id)
        if live is None:
            return  # cancelled while this was on its way
        self._live.advanced(event)
        live.generation.push(event)
        if event.finish is not None:
            self.totals.output_tokens += event.finish.output_tokens

    def _tell_places(self, places: Sequence[Place]) -> None:
        for generation, place in self._live.waiting(places, self._clock()).items():
            generation.wait_at(place)

    def _loading(self, fraction: float) -> None:
        if int(4 * fraction) > int(4 * self.loading_fraction):
            logger.info("loading %s: %.0f %%", self._options.model_path, 100 * fraction)
        self.loading_fraction = fraction

    def _ready(self, info: ModelInfo) -> None:
        logger.info(
            "ready: %s, %d KV tokens (%s, %.0f MiB), %d sequences at once, %d threads",
            info.description,
            info.kv_tokens,
            info.kv_type,
            info.kv_tokens * info.kv_bytes_per_token / 2**20,
            info.max_seqs,
            info.threads,
        )
        self.info = info
        self.reason = None
        self._move(EngineState.READY)
        self._submit(self._live.innocent())
        self._try_suspect()

    def _try_suspect(self) -> None:
        suspect = self._live.next_suspect()
        if suspect is not None:
            self._submit([suspect])

    def _start_failed(self, message: str) -> None:
        if self._state is EngineState.LOADING:
            raise StartupError(message)
        self.reason = message

    async def _crashed(self, exit_status: int | None) -> None:
        """Decide what the death means, and wait before the next start."""
        if self._state is EngineState.LOADING:
            raise StartupError(f"the engine died while it loaded the model (exit status {exit_status})")
        self.reason = self.reason or f"the engine process died (exit status {exit_status})"
        logger.error("%s, %d requests live", self.reason, len(self._live))
        self._restarts += 1
        self._kv_stats = None
        self._crash_times.append(self._clock())
        self._fail(self._live.crashed(), "The engine crashed twice while it computed this request.")
        if self._recent_crashes() >= _MAX_CRASHES_A_MINUTE:
            self._give_up()
            return
        self._move(EngineState.RESTARTING)
        await asyncio.sleep(_FIRST_BACKOFF_S * 2 ** (self._recent_crashes() - 1))

    def _recent_crashes(self) -> int:
        return sum(self._clock() - t < 60 for t in self._crash_times)

    def _give_up(self) -> None:
        self.reason = f"the engine process died {_MAX_CRASHES_A_MINUTE} times within a minute"
        logger.critical("giving up: %s", self.reason)
        self._move(EngineState.FAILED)
        self._fail(list(self._live), f"The engine is gone: {self.reason}.")

    def _fail(
        self, requests: Sequence[Live], message: str, kind: type[ServerError] = GenerationFailed
    ) -> None:
        for live in requests:
            self._live.remove(live.request.id)
            live.generation.fail(live.request.id, kind(message))

    def _move(self, to: EngineState) -> None:
        if to is self._state:
            return
        assert self._state.may_become(to), f"{self._state.value} -> {to.value}"
        self._state = to
