"""Watchdog that kills an engine process that hangs or sends unreadable messages, and classifies its death.

The limits are generous because a busy machine makes a step ten or a hundred times slower, and killing a
healthy engine costs every client a restart. A hang is rare, and a wait of a minute is acceptable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import msgspec

from openai_cpu_server.contract.messages import Event, Handling, StepStarted
from openai_cpu_server.engine_client.child import EngineProcess
from openai_cpu_server.engine_client.deaths import Death, MemoryKiller

logger = logging.getLogger(__name__)

TICK_S = 0.5
"""Interval of the checks."""
_FACTOR = 300.0
"""Factor by which a step may exceed its expected time."""


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    step_s: float | None = 60.0
    """Longest silence in a step, or 300 times its expected time if that is longer. None: no limit."""
    load_s: float | None = 1800.0
    """Longest silence while the model is loaded and its steps are measured. None: no limit."""


class HangDetector:
    """Timer of one engine process's silence. It gets all events and is checked every `TICK_S`."""

    def __init__(self, limits: HangLimits, *, now_s: float) -> None:
        self.silence_s = 0.0
        """Silence while the engine had work, counting only time in which this process itself ran."""
        self.handling_s: float | None = None
        """Time for which a request has been handled outside of steps, despite other events, or None."""
        self._limits = limits
        self._checked_s = now_s
        self._expected_s = 0.0

    def news(self) -> None:
        self.silence_s = 0.0

    def step_begins(self, expected_ms: float) -> None:
        self._expected_s = expected_ms / 1000

    def handling(self, request_id: str | None) -> None:
        self.handling_s = None if request_id is None else 0.0

    @property
    def stuck_s(self) -> float:
        return max(self.silence_s, self.handling_s or 0.0)

    def is_hung(self, now_s: float, *, is_loading: bool, is_pending: bool, is_waiting: bool = False) -> bool:
        """`is_pending`: the engine has work. `is_waiting`: another engine computes, so this one may not. A
        long gap between two checks counts as a short one, because this process was stopped or had no CPU
        then, and neither had the engine."""
        waited = min(now_s - self._checked_s, 2 * TICK_S)
        self._checked_s = now_s
        is_due = (is_loading or is_pending) and not is_waiting
        self.silence_s = self.silence_s + waited if is_due else 0.0
        if self.handling_s is not None:
            self.handling_s += waited
        limit_s = self._limits.load_s if is_loading else self._limits.step_s
        if limit_s is not None and not is_loading:
            limit_s = max(limit_s, _FACTOR * self._expected_s)
        return limit_s is not None and self.stuck_s > limit_s


@dataclass(eq=False)
class Watchdog:
    """Receiver of the process's events, which also checks it every `TICK_S` until `stop`."""

    process: EngineProcess
    _: KW_ONLY
    limits: HangLimits
    killer: MemoryKiller
    clock: Callable[[], float]
    is_loading: Callable[[], bool]
    is_pending: Callable[[], bool]
    is_waiting: Callable[[], bool]
    """True while another engine uses the cores, which is not a hang."""
    _hung_s: float | None = None
    """Silence for which it was killed."""
    _unreadable: str | None = None
    """Error of the message for which it was killed."""

    def __post_init__(self) -> None:
        self._detector = HangDetector(self.limits, now_s=self.clock())
        self._task = asyncio.create_task(self._watch())

    async def receive(self) -> Event | None:
        """Return None when the process is gone or was killed for an unreadable message."""
        try:
            event = await self.process.receive()
        except msgspec.DecodeError as error:
            logger.error("a message of the engine process cannot be read: killing it")
            self._unreadable = str(error)
            self.process.kill()
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
        if self._unreadable is not None:
            return Death.of_bad_message(self._unreadable)
        return Death.of(
            self.process.exit_status, hang_s=self._hung_s, ran_out_of_memory=self.killer.has_struck
        )

    async def _watch(self) -> None:
        while not self._detector.is_hung(
            self.clock(),
            is_loading=self.is_loading(),
            is_pending=self.is_pending(),
            is_waiting=self.is_waiting(),
        ):
            self.killer.look()
            await asyncio.sleep(TICK_S)
        self._hung_s = self._detector.stuck_s
        logger.error("the engine process makes no progress: killing it")
        self.process.kill()
