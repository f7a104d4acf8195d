"""Kills an engine process that hangs or cannot be read, and tells what it died of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from openai_cpu_server.contract.messages import Event, Handling, StepStarted
from openai_cpu_server.dispatch.death import Death
from openai_cpu_server.dispatch.process.child import EngineProcess
from openai_cpu_server.dispatch.process.hang_detector import TICK_S, HangDetector, HangLimits
from openai_cpu_server.dispatch.process.memory_killer import MemoryKiller

logger = logging.getLogger(__name__)


class Watchdog:
    """Hears what the process says, and looks at it every `TICK_S` until `stop`."""

    def __init__(
        self,
        process: EngineProcess,
        *,
        limits: HangLimits,
        killer: MemoryKiller,
        clock: Callable[[], float],
        is_loading: Callable[[], bool],
        owes: Callable[[], bool],
        is_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_waiting`: for its turn on cores that another engine computes on. That is no hang."""
        self._process = process
        self._detector = HangDetector(limits, now_s=clock())
        self._killer = killer
        self._clock = clock
        self._is_loading = is_loading
        self._owes = owes
        self._is_waiting = is_waiting
        self._hung_s: float | None = None
        """The silence for which it was killed."""
        self._unreadable: str | None = None
        """Why it was killed for what it said."""
        self._task = asyncio.create_task(self._watch())

    async def receive(self) -> Event | None:
        """The process's next event; None when it is gone, or was killed for one that cannot be read."""
        try:
            event = await self._process.receive()
        except msgspec.DecodeError as error:
            logger.error("a message of the engine process cannot be read: killing it")
            self._unreadable = str(error)
            self._process.kill()
            return None
        self._detector.news()
        match event:
            case StepStarted(expected_ms=expected_ms):
                self._detector.step_begins(expected_ms)
            case Handling(id=request_id):
                self._detector.handling(request_id)
        return event

    def stop(self) -> None:
        self._task.cancel()

    def death(self) -> Death:
        """What the process has died of, when it has ended."""
        if self._unreadable is not None:
            return Death.by_message(self._unreadable)
        return Death.of(
            self._process.exit_status, hang_s=self._hung_s, ran_out_of_memory=self._killer.has_struck
        )

    async def _watch(self) -> None:
        """If it hangs it is killed, and then dead like any other."""
        while not self._is_hung():
            self._killer.look()
            await asyncio.sleep(TICK_S)
        self._hung_s = self._detector.stuck_s
        logger.error("the engine process makes no progress: killing it")
        self._process.kill()

    def _is_hung(self) -> bool:
        return self._detector.is_hung(
            self._clock(),
            is_loading=self._is_loading(),
            owes=self._owes(),
            is_waiting=self._is_waiting(),
        )
