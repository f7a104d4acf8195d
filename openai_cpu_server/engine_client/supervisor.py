"""Start, watchdog, and replacement of an engine process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from openai_cpu_server.contract.engine import EngineState, EngineStatus, RequestState
from openai_cpu_server.contract.messages import Command, EngineEvent, EngineOptions, Ready, StartFailed
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.engine_client.child import EngineProcess, HangLimits, Watchdog, resident_bytes
from openai_cpu_server.engine_client.deaths import Death, DeathKind, DeathRecord, MemoryKiller, SearchProgress
from openai_cpu_server.engine_client.replay import RequestReplay
from openai_cpu_server.engine_client.shared_cores import CoresPartner
from openai_cpu_server.engine_client.subscribers import NO_OBSERVER, EngineNews, EngineObserver
from openai_cpu_server.errors import EngineUnavailable, GenerationFailed, StartupError

logger = logging.getLogger(__name__)

_UNWANTED = (EngineState.STOPPED, EngineState.FAILED, EngineState.ASLEEP)
_STARTING = (EngineState.LOADING, EngineState.RESTARTING)


class EngineLifecycle:
    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._stopped = asyncio.Event()
        self.is_wanted_again = asyncio.Event()
        """Set unless the engine sleeps or has failed."""
        self._settled = asyncio.Event()
        """Set while the engine neither loads nor restarts."""

    @property
    def is_wanted(self) -> bool:
        return self.state not in _UNWANTED

    @property
    def is_starting(self) -> bool:
        return self.state in _STARTING

    def move(self, to: EngineState) -> None:
        if to is self.state:
            return
        assert self.state.may_become(to), f"{self.state.value} -> {to.value}"
        self.state = to
        if to is EngineState.STOPPED:
            self._stopped.set()
        goes_on = to is EngineState.STOPPED or self.is_wanted
        (self.is_wanted_again.set if goes_on else self.is_wanted_again.clear)()
        (self._settled.clear if self.is_starting else self._settled.set)()

    async def settled(self) -> EngineState:
        await self._settled.wait()
        return self.state

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


class NextOptions:
    def __init__(self, wished: EngineOptions) -> None:
        self.options = self._wished = wished

    def measure_nothing(self) -> None:
        self.options = msgspec.structs.replace(self.options, calibrate="never")

    def without_device(self, death: Death) -> bool:
        if not (self.options.wants_device and death.may_be_device):
            return False
        logger.warning("%s, with a device: the CPU serves from here on", death.message)
        self.options = self.options.on_cpu_alone(f"with it {death.message}")
        return True

    def with_devices(self) -> None:
        wished = self._wished
        self.options = msgspec.structs.replace(
            self.options, offload=wished.offload, draft_offload=wished.draft_offload
        )


_NOT_LOADED = (EngineState.ASLEEP, EngineState.LOADING)


class Supervisor:
    """Owner of the engine process."""

    def __init__(
        self,
        command: Sequence[str],
        options: EngineOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        observer: EngineObserver = NO_OBSERVER,
        hang_limits: HangLimits = HangLimits(),  # noqa: B008 (frozen)
        max_crashes_a_minute: int = 5,
        memory_killer: Callable[[], MemoryKiller] = MemoryKiller,
        begins_asleep: bool = False,
        foretold: ModelInfo | None = None,
        partner: CoresPartner | None = None,
    ) -> None:
        """`command`: the number of its socket's descriptor is appended; `foretold`: facts before the model is
        loaded; `partner`: set if engines share the cores. `begins_asleep`: wait for `wake`, and treat a
        failure to load as a state."""
        self.news = EngineNews(options, observer=observer, foretold=foretold, partner=partner)
        self.reason: str | None = None
        self.failed_s: float | None = None
        """Time of the failure, or None."""
        self._must_start = not begins_asleep
        """True until a first process is ready, if a failure to start ends the server."""
        self._command = tuple(command)
        self._next = NextOptions(msgspec.structs.replace(options, shares_cores=partner is not None))
        self._clock = clock
        self._hang_limits = hang_limits
        self._memory_killer = memory_killer
        self._deaths = DeathRecord(max_a_minute=max_crashes_a_minute, clock=clock)
        self._life = EngineLifecycle(EngineState.ASLEEP if begins_asleep else EngineState.LOADING)
        self.settled = self._life.settled
        self._process: EngineProcess | None = None
        self._last_process: EngineProcess | None = None
        self._start_failure: str | None = None
        self._gone = asyncio.Event()
        """Set while no process exists or is being started."""
        self._gone.set()

    @property
    def state(self) -> EngineState:
        return self._life.state

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def status(self, count: Callable[[RequestState], dict[str, int]]) -> EngineStatus:
        info, kv, deaths = self.news.info, self.news.kv_stats, self._deaths.recent
        engine_rss_bytes = self._process.rss_bytes if self._process else 0
        return EngineStatus(
            state=self.state,
            reason=self.reason,
            loaded=self.news.progress.loaded if info is None or self.state in _NOT_LOADED else 1.0,
            timed=self.news.progress.timed,
            running=count(RequestState.RUNNING),
            waiting=count(RequestState.WAITING),
            kv_tokens=info.kv_tokens if info else 0,
            kv_tokens_used=kv.pool_tokens_used if kv else 0,
            restarts=self._deaths.num,
            last_death=deaths[-1] if deaths else None,
            deaths=deaths,
            rss_bytes=resident_bytes() + engine_rss_bytes,
            engine_rss_bytes=engine_rss_bytes,
            kernels={**info.computed_by, **info.drafts_by(self.news.drafting)} if info else {},
            drafting=self.news.drafting,
            placement=info.placement if info else None,
            draft_placement=info.draft_placement if info else None,
            threads=info.threads if info else 0,
            threads_computing=self.news.threads or (info.threads if info else 0),
            is_throttled=self.news.is_throttled,
        )

    def forget_cache_file(self) -> None:
        if self._next.options.cache_file is not None:
            with contextlib.suppress(OSError):
                Path(self._next.options.cache_file).unlink()

    def send(self, *commands: Command) -> None:
        if self._process is not None:
            self._process.send(*commands)

    async def run(self, replay: RequestReplay) -> None:
        """Keep an engine alive until `stop`, unless it sleeps or has failed. Raises `StartupError` if the
        first one must start and cannot."""
        while self.state is not EngineState.STOPPED:
            if not self._life.is_wanted:
                await self._life.is_wanted_again.wait()
                continue
            self._gone.clear()
            try:
                death = await self._one_life(replay)
            finally:
                self._gone.set()
            if death is not None and self._life.is_wanted:
                await self._replace(death, replay)

    def wake(self) -> None:
        self._life.move(EngineState.LOADING)
        self.news.loads_again()
        self.reason, self.failed_s = None, None
        self._deaths.forgive()
        self._next.with_devices()

    async def sleep(self) -> None:
        if self.state is EngineState.ASLEEP:
            return
        self._life.move(EngineState.ASLEEP)
        self.news.forget()
        self.reason = None
        if self._process is not None:
            await self._process.close()
        await self._gone.wait()

    def fail(self, reason: str) -> None:
        self.reason, self.failed_s = reason, self._clock()
        self._life.move(EngineState.FAILED)

    def stop(self) -> None:
        """Start no further process. One that loads has nothing to save and is killed."""
        is_loading = self._life.is_starting
        self._end()
        if is_loading and self._process is not None:
            self._process.kill()

    async def wait_for_end(self) -> None:
        if self._process is not None:
            await self._process.close()

    def kill(self) -> None:
        self._end()
        if self._last_process is not None:
            self._last_process.kill()

    def _end(self) -> None:
        self._life.move(EngineState.STOPPED)
        self.news.end(lambda: EngineUnavailable("The server is shutting down."))

    async def _one_life(self, replay: RequestReplay) -> Death | None:
        self._start_failure = None
        options = msgspec.structs.replace(self._next.options, adapters=self.news.next_process())
        try:
            process = await EngineProcess.spawn(self._command, options)
        except (OSError, RuntimeError) as error:  # of descriptors, memory or threads there may be none left
            return Death.not_started(error)
        self._process = self._last_process = process
        was_wanted = self._life.is_wanted
        if not was_wanted:
            process.kill()
        self.news.started(process.send)
        watchdog = Watchdog(
            process,
            limits=self._hang_limits,
            killer=self._memory_killer(),
            clock=self._clock,
            is_loading=lambda: self.state is not EngineState.READY,
            is_pending=lambda: self.news.is_pending(replay),
            is_waiting=lambda: self.news.is_waiting,
        )
        try:
            while (event := await watchdog.receive()) is not None and self._life.is_wanted:
                if not process.is_closing:
                    self._handle(event, replay)
        finally:
            was_intended = process.is_closing or not was_wanted
            watchdog.stop()
            self.news.lost(replay)
            self._process = None
            await process.close()
        return None if was_intended else watchdog.death()

    def _handle(self, event: EngineEvent, replay: RequestReplay) -> None:
        match event:
            case Ready(info=info):
                logger.info("ready: %s", info.summary)
                self.reason, self._must_start = None, False
                self._deaths.crashes.started()
                self._life.move(EngineState.READY)
                self.news.ready(info, replay, self.send)
            case StartFailed(message=message):
                if self.state is EngineState.LOADING and self._must_start:
                    raise StartupError(message)
                self._start_failure = message
            case _:
                self.news.handle(event, replay)

    async def _replace(self, death: Death, replay: RequestReplay) -> None:
        is_own_fault = death.kind is not DeathKind.KILL  # else an adapter that was being loaded is blameless
        if is_own_fault and self.news.adapters.died(death.message) and self.state is EngineState.LOADING:
            return  # the next process does not load it
        may_be_device = self._start_failure is None
        if self.state is EngineState.LOADING and may_be_device and self._next.without_device(death):
            return
        # After a kill from outside the next process may get further.
        is_tried_again = not (self._must_start or is_own_fault or self._start_failure)
        if self.state is EngineState.LOADING and not is_tried_again:
            self._not_loaded(self._start_failure or self.news.progress.failure(death), replay)
            return
        is_idle = self.state is EngineState.READY and not replay.num_live
        if is_idle and death.kind is DeathKind.FAULT and self._next.options.calibrate == "idle":
            logger.warning("steps are no longer timed, because that may have killed the engine")
            self._next.measure_nothing()
        self.reason = self._start_failure or death.message
        logger.error("%s; live requests: %d", self.reason, replay.num_live)
        if replay.has_explained():
            self._deaths.forgive()
        search = replay.died(death)
        self.news.died(death.cause)
        self._deaths.book(
            death,
            search=search,
            has_advanced=self.news.has_advanced,
            while_restarting=self.state is EngineState.RESTARTING,
        )
        if search is SearchProgress.FOUND:
            self._next.with_devices()  # a request was to blame
        elif may_be_device:
            self._next.without_device(death)
        if (why := self._deaths.crashes.why_too_many) is not None:
            self._give_up(why, replay)
            return
        self._life.move(EngineState.RESTARTING)
        await self._life.pause(self._deaths.crashes.backoff_s)

    def _not_loaded(self, why: str, replay: RequestReplay) -> None:
        if self._must_start:
            raise StartupError(why)
        logger.error("%s is not loaded: %s", self._next.options.model_path, why)
        self.fail(why)
        again_s = self.state.retry_after_s
        replay.end(lambda: EngineUnavailable(f"The model could not be loaded: {why}", again_s))
        self.news.end(lambda: EngineUnavailable(f"The model could not be loaded: {why}", again_s))

    def _give_up(self, why: str, replay: RequestReplay) -> None:
        self.fail(f"{why}; the last time {self.reason}")
        logger.critical("giving up: %s", self.reason)
        replay.end(lambda: GenerationFailed(f"The engine was given up: {self.reason}."))
        self.news.end(lambda: EngineUnavailable(f"The engine was given up: {self.reason}."))
