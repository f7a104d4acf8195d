"""The asyncio side of the engine: starts the process, feeds it, and survives its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from openai_cpu_server.contract.engine import (
    EngineState,
    EngineStatus,
    LastDeath,
    LiveRequest,
    RequestState,
    unavailable,
)
from openai_cpu_server.contract.messages import (
    Cancel,
    ClearCache,
    EngineOptions,
    Event,
    Handling,
    KVStats,
    Loading,
    LoadingPhase,
    QueueState,
    Ready,
    StartFailed,
    StepDone,
    StepStarted,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.dispatch.child import EngineProcess
from openai_cpu_server.dispatch.crashes import CrashRecord
from openai_cpu_server.dispatch.death import Death, DeathKind
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.dispatch.guard import Guard
from openai_cpu_server.dispatch.live import Live
from openai_cpu_server.dispatch.memory_killer import MemoryKiller
from openai_cpu_server.dispatch.queue_room import wait_until_left_s
from openai_cpu_server.dispatch.recovery import LiveRequests
from openai_cpu_server.dispatch.state import Totals
from openai_cpu_server.dispatch.watch import NOBODY, EngineWatch
from openai_cpu_server.dispatch.watchdog import HangLimits
from openai_cpu_server.errors import (
    EngineUnavailable,
    GenerationFailed,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
    ServerError,
    StartupError,
)

logger = logging.getLogger(__name__)

_DRAIN_LOOK_S = 0.05


class EngineClient:
    """Owns the engine process and every live request. All methods belong to one event loop's thread.

    `command` starts the engine; the number of its socket's file descriptor is appended. `max_queue` is of
    each priority; `max_held_bytes` of each API call, in events that its client has not taken.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: EngineOptions,
        *,
        max_queue: int,
        max_held_bytes: int = 4 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
        watch: EngineWatch = NOBODY,
        hang_limits: HangLimits = HangLimits(),  # noqa: B008 (frozen)
        max_crashes_a_minute: int = 5,
        memory_killer: Callable[[], MemoryKiller] = MemoryKiller,
    ) -> None:
        self.totals = Totals()
        self.info: ModelInfo | None = None
        self._loaded = 0.0
        self._timed: float | None = None
        """How far the timing of steps has come; None: not begun, or not needed."""
        self.reason: str | None = None
        self._command = tuple(command)
        self._options = options
        self._max_queue = max_queue
        self._max_held_bytes = max_held_bytes
        self._clock = clock
        self._watch = watch
        self._state = EngineState.LOADING
        self._live = LiveRequests()
        self._process: EngineProcess | None = None
        """None: there is none that listens."""
        self._last_process: EngineProcess | None = None
        """It may still be on its way out."""
        self._stopped = asyncio.Event()
        self._hang_limits = hang_limits
        self._memory_killer = memory_killer
        self._start_failure: str | None = None
        """What the present process has said about it."""
        self._crashes = CrashRecord(max_a_minute=max_crashes_a_minute, clock=clock)
        self._has_advanced = False
        """The present process has brought tokens."""
        self._is_draining = False
        self._restarts = 0
        self._last_death: tuple[Death, float] | None = None
        """And when."""
        self._kv_stats: KVStats | None = None

    # -- for the API -----------------------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        is_alive = self._state in (EngineState.READY, EngineState.RESTARTING)
        return EngineState.DRAINING if self._is_draining and is_alive else self._state

    @property
    def is_ending(self) -> bool:
        """It drains, or has stopped; whatever state the process is in, nothing new is begun."""
        return self._is_draining or self._state is EngineState.STOPPED

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Submit the sequences of one API call. Never blocks.

        Raises `EngineUnavailable`, `QueueFull`, `InvalidRequest` for more sequences than may ever wait.
        """
        self._check_open()
        self._check_queue(requests[0].priority, len(requests))
        generation = Generation(
            requests, cancel=self._cancel, clock=self._clock, max_held_bytes=self._max_held_bytes
        )
        for request in requests:
            self._live.add(Live(request, generation, self._clock()))
        self._send_due()
        self.totals.requests += 1
        self.totals.prompt_tokens += sum(map(len, {request.tokens for request in requests}))
        return generation

    def status(self) -> EngineStatus:
        return EngineStatus(
            state=self.state,
            reason=self.reason,
            loaded=1.0 if self.info else self._loaded,
            timed=self._timed,
            running=self._live.count(RequestState.RUNNING),
            waiting=self._live.count(RequestState.WAITING),
            kv_tokens=self.info.kv_tokens if self.info else 0,
            kv_tokens_used=self._kv_stats.pool_tokens_used if self._kv_stats else 0,
            restarts=self._restarts,
            last_death=self._told_of_last_death(),
            rss_bytes=self._rss_bytes(),
        )

    def kv_stats(self) -> KVStats | None:
        """As of the last step; None while this engine process has not made any."""
        return self._kv_stats

    def clear_cache(self) -> None:
        """Drop all of the prefix cache but what is pinned, with the next step. Raises `EngineUnavailable`."""
        if self._process is None or self.state is not EngineState.READY:
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
        self._cancel(*[live.request.id for live in call])
        self._fail(call, lambda: RequestCancelled("The request was cancelled on the server."))
        return bool(call)

    @property
    def engine_pid(self) -> int | None:
        return self._process.pid if self._process else None

    def _check_open(self) -> None:
        if self.state not in (EngineState.READY, EngineState.RESTARTING):
            raise self._unavailable()

    def _unavailable(self) -> EngineUnavailable:
        return unavailable(self.status())

    def _check_queue(self, priority: Priority, num_new: int) -> None:
        if num_new > self._max_queue:
            message = f"{num_new} sequences in one call; {self._max_queue} may wait at once on this server."
            raise InvalidRequest(message, param="n", code="invalid_value")
        waiting = self._live.count(RequestState.WAITING)[priority.label]
        num_over = waiting + num_new - self._max_queue
        if num_over > 0:
            expected = self._live.expected_waits_s(priority, self._clock())
            raise QueueFull(waiting, retry_after_s=wait_until_left_s(expected, num_over))

    def _told_of_last_death(self) -> LastDeath | None:
        if self._last_death is None:
            return None
        death, died_s = self._last_death
        return LastDeath(cause=death.cause, message=death.message, age_s=self._clock() - died_s)

    def _rss_bytes(self) -> int:
        engine = self._process.rss_bytes if self._process else 0
        return engine + int(psutil.Process().memory_info().rss)

    def _cancel(self, *request_ids: str) -> None:
        """The engine is not to compute them any more. Who reads them knows, or is still to be told."""
        for request_id in request_ids:
            self._live.remove(request_id)
        if self._process is not None:
            self._process.send(*[Cancel(id=request_id) for request_id in request_ids])
        self._send_due()

    def _send_due(self) -> None:
        """Without a ready engine they wait in `_live` for the next one."""
        if self._process is not None and self._state is EngineState.READY and (due := self._live.due()):
            self._process.send(*[live.submit() for live in due])

    # -- the process's life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep an engine alive until `close`. Raises `StartupError` if the first one cannot start."""
        while self._is_wanted():
            death = await self._live_once()
            if self._is_wanted():
                await self._crashed(death)

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and give what runs or waits this long to end.

        Batch work that has not begun is refused at once: it can be sent again.
        """
        self._is_draining = True
        self.reason = "the server is about to end"
        waiting = [live for live in self._live if live.state is RequestState.WAITING]
        batch = [live for live in waiting if live.request.priority is Priority.BATCH]
        self._cancel(*[live.request.id for live in batch])
        self._fail(batch, self._unavailable)
        deadline_s = self._clock() + seconds
        while len(self._live) and self._clock() < deadline_s:  # noqa: ASYNC110 (once in a server's life)
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def close(self) -> None:
        """End all requests and the process. One that loads has nothing to save and is not waited for."""
        is_loading = self._state in (EngineState.LOADING, EngineState.RESTARTING)
        self._move(EngineState.STOPPED)
        self._fail(list(self._live), lambda: GenerationFailed("The server is shutting down.", may_retry=True))
        if self._process is not None:
            if is_loading:
                self._process.kill()
            await self._process.close()

    def kill(self) -> None:
        """For a `close` that is not to wait, not even if it waits already."""
        self._move(EngineState.STOPPED)
        if self._last_process is not None:
            self._last_process.kill()

    def _is_wanted(self) -> bool:
        return self._state not in (EngineState.STOPPED, EngineState.FAILED)

    async def _live_once(self) -> Death:
        """One engine process from spawn to death."""
        self._start_failure, self._has_advanced = None, False
        try:
            process = await EngineProcess.spawn(self._command, self._options)
        except (OSError, RuntimeError) as error:  # of descriptors, memory or threads there may be none left
            return Death.unborn(error)
        self._process = self._last_process = process
        if not self._is_wanted():
            process.kill()
        guard = self._guard(process)
        try:
            await self._follow(guard)
        finally:
            guard.stop()
            self._process = None
            await process.close()
        return guard.death()

    def _guard(self, process: EngineProcess) -> Guard:
        return Guard(
            process,
            limits=self._hang_limits,
            killer=self._memory_killer(),
            clock=self._clock,
            is_loading=lambda: self._state is not EngineState.READY,
            owes=lambda: self._live.are_owed,
        )

    async def _follow(self, guard: Guard) -> None:
        """Until the process has said its last, or is not wanted any more when it has said something."""
        while (event := await guard.receive()) is not None and self._is_wanted():
            self._handle(event)

    def _handle(self, event: Event) -> None:
        match event:
            case StepDone(events=events, kv=kv, figures=figures):
                self._kv_stats = kv
                if figures is not None:
                    self._watch.step_done(figures)
                for token_event in events:
                    self._deliver(token_event)
                self._send_due()
            case StepStarted(ids=ids):
                for live in self._live.computing(ids):
                    live.generation.start()
            case Handling(id=request_id):
                self._live.handling(request_id)
            case QueueState():
                self._tell_places(event)
            case Loading() | Ready() | StartFailed():
                self._starting(event)

    def _starting(self, event: Loading | Ready | StartFailed) -> None:
        match event:
            case Loading(fraction=fraction, phase=phase):
                self._loading(fraction, phase)
            case Ready(info=info):
                self._ready(info)
            case StartFailed(message=message):
                self._start_failed(message)

    def _deliver(self, event: TokenEvent) -> None:
        self._has_advanced = True
        live = self._live.get(event.id)
        if live is None:
            return  # cancelled while this was on its way
        self._live.advanced(event)
        live.generation.push(event)
        if event.finish is not None:
            self.totals.output_tokens += event.finish.output_tokens

    def _tell_places(self, queue: QueueState) -> None:
        self._live.preempted(queue.preempted)
        for generation, place in self._live.waiting(queue.places, self._clock()).items():
            generation.wait_at(place)

    def _loading(self, fraction: float, phase: LoadingPhase) -> None:
        if phase is LoadingPhase.COSTS:
            self._timed = fraction
            return
        if int(4 * fraction) > int(4 * self._loaded):
            logger.info("loading %s: %.0f %%", self._options.model_path, 100 * fraction)
        self._loaded = fraction

    def _ready(self, info: ModelInfo) -> None:
        logger.info("ready: %s", info.summary)
        self.info = info
        if not self._is_draining:
            self.reason = None
        self._crashes.started()
        self._move(EngineState.READY)
        self._send_due()

    def _start_failed(self, message: str) -> None:
        if self._state is EngineState.LOADING:
            raise StartupError(message)
        self._start_failure = message

    async def _crashed(self, death: Death) -> None:
        """Decide what the death means, and wait before the next start."""
        if self._state is EngineState.LOADING:
            raise StartupError(self._first_death(death))
        if self._may_have_died_measuring(death):
            logger.warning("steps are not timed any more: the engine may have died of that")
            self._options = msgspec.structs.replace(self._options, calibrate="never")
        self.reason = self._start_failure or death.message
        logger.error("%s, %d requests live", self.reason, len(self._live))
        self._restarts += 1
        self._last_death = (death, self._clock())
        self._watch.engine_died(death.cause)
        self._kv_stats = None
        verdict = self._live.crashed(death.kind)
        is_unexplained = death.kind is not DeathKind.KILL or not self._has_advanced
        if is_unexplained and not verdict.is_closer:
            self._crashes.note()
        if death.kind is not DeathKind.KILL and self._state is EngineState.RESTARTING:
            self._crashes.start_failed()
        self._fail(verdict.guilty, lambda: GenerationFailed(death.verdict))
        if (why := self._crashes.why_too_many) is not None:
            self._give_up(why)
            return
        self._move(EngineState.RESTARTING)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), self._crashes.backoff_s)

    def _may_have_died_measuring(self, death: Death) -> bool:
        """By itself, ready, and with nothing else to do."""
        is_idle = self._state is EngineState.READY and not len(self._live)
        return is_idle and death.kind is DeathKind.FAULT and self._options.calibrate == "idle"

    def _first_death(self, death: Death) -> str:
        if self._timed is None:
            return f"the model could not be loaded: {death.message}"
        return f"{death.message} while it timed steps (--calibrate never leaves that out)"

    def _give_up(self, why: str) -> None:
        self.reason = f"{why}; the last time {self.reason}"
        logger.critical("giving up: %s", self.reason)
        self._move(EngineState.FAILED)
        self._fail(list(self._live), lambda: GenerationFailed(f"The engine is gone: {self.reason}."))

    def _fail(self, requests: Sequence[Live], error: Callable[[], ServerError]) -> None:
        """`error`: a new one for each, for each is raised somewhere else."""
        for live in requests:
            self._live.remove(live.request.id)
            live.generation.fail(live.request.id, error())

    def _move(self, to: EngineState) -> None:
        if to is self._state:
            return
        assert self._state.may_become(to), f"{self._state.value} -> {to.value}"
        self._state = to
        if to is EngineState.STOPPED:
            self._stopped.set()
