"""The state of an engine, and those who wait for it to change."""

from __future__ import annotations

import asyncio
import contextlib

from openai_cpu_server.contract.engine import EngineState

_UNWANTED = (EngineState.STOPPED, EngineState.FAILED, EngineState.ASLEEP)
_STARTING = (EngineState.LOADING, EngineState.RESTARTING)


class Lifecycle:
    """Moves through one door, which refuses illegal ones."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._stopped = asyncio.Event()
        self._is_wanted_again = asyncio.Event()
        """It sleeps or has failed, and is to go on: awake, or to its end."""
        self._settled = asyncio.Event()
        """It neither loads nor restarts."""

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def is_wanted(self) -> bool:
        """There is to be a process."""
        return self._state not in _UNWANTED

    @property
    def is_starting(self) -> bool:
        return self._state in _STARTING

    def move(self, to: EngineState) -> None:
        if to is self._state:
            return
        assert self._state.may_become(to), f"{self._state.value} -> {to.value}"
        self._state = to
        if to is EngineState.STOPPED:
            self._stopped.set()
        _set(self._is_wanted_again, is_so=to is EngineState.STOPPED or self.is_wanted)
        if to is EngineState.LOADING:
            self._settled.clear()
        elif not self.is_starting:
            self._settled.set()

    async def wanted_again(self) -> None:
        """Returns when it is to go on: awake, or to its end."""
        await self._is_wanted_again.wait()

    async def settled(self) -> EngineState:
        """The state that loading leads to, once it is over."""
        await self._settled.wait()
        return self._state

    async def pause(self, seconds: float) -> None:
        """Returns earlier where it is stopped."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), seconds)


def _set(event: asyncio.Event, *, is_so: bool) -> None:
    if is_so:
        event.set()
    else:
        event.clear()
