"""Loading of models on demand, and unloading of others to make room."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from openai_cpu_server.contract.engine import EngineState, EngineStatus, unavailable
from openai_cpu_server.errors import ModelInUse, ModelNotLoaded, ModelTooLarge

_MIB = 1024 * 1024


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Estimated bytes of a loaded model."""

    weights: int
    """Includes the draft model, as do the cells."""
    cells: int
    buffers: int
    """Includes the process itself."""
    cache: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.buffers + self.cache

    def __str__(self) -> str:
        return (
            f"{_mib(self.total)} (weights {_mib(self.weights)}, KV cells {_mib(self.cells)}, "
            f"buffers {_mib(self.buffers)}, prefix cache {_mib(self.cache)})"
        )


class ResidentModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_bytes: int
    last_use_s: float
    is_evictable: bool


@dataclass(frozen=True)
class MemoryBudget:
    limit_bytes: int
    option: str = "--memory"

    def why_never(self, name: str, need: MemoryNeed, pinned: Iterable[ResidentModel]) -> str | None:
        """Return the arithmetic if the model does not fit even beside only the pinned ones."""
        stay = [one for one in pinned if one.name != name]
        left = self.limit_bytes - sum(one.num_bytes for one in stay)
        if need.total <= left:
            return None
        beside = "".join(f" - {_mib(one.num_bytes)} of '{one.name}', which is pinned" for one in stay)
        return (
            f"the model '{name}' needs {need}, and there are {_mib(max(0, left))} "
            f"({self.option} {self.limit_bytes // _MIB} MiB{beside})"
        )

    def to_unload(self, num_bytes: int, residents: Sequence[ResidentModel]) -> tuple[int, ...] | None:
        """Return indices of models that must be unloaded, least recently used first, or None if all idle ones
        are not enough."""
        missing = num_bytes + sum(one.num_bytes for one in residents) - self.limit_bytes
        chosen: list[int] = []
        for index in sorted(range(len(residents)), key=lambda index: residents[index].last_use_s):
            one = residents[index]
            if missing > 0 and one.is_evictable and one.num_bytes > 0:
                chosen.append(index)
                missing -= one.num_bytes
        if missing > 0:
            return None
        for index in chosen[::-1]:  # some need not go after all, the most recently used first
            if residents[index].num_bytes <= -missing:
                chosen.remove(index)
                missing += residents[index].num_bytes
        return tuple(chosen)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.0f} MiB"


logger = logging.getLogger(__name__)

RETRY_S = 10.0
"""Pause after a failure. Without requests it doubles with each try within `_CALM_S`."""
_LONGEST_RETRY_S = 300.0
_CALM_S = 900.0
_PATIENCE_S = 10.0
"""Time to wait for idle models; then one of them receives no new requests."""
_LOOK_S, _LOOK_SOON_S = 1.0, 0.05
_OUT_OF_MEMORY = (EngineState.ASLEEP, EngineState.FAILED, EngineState.STOPPED)


class LoadObserver(Protocol):
    def model_loaded(self, model: str, seconds: float) -> None: ...

    def model_not_loaded(self, model: str) -> None: ...

    def model_unloaded(self, model: str, why: str) -> None:
        """`why`: `idle`, `room`, `asked` or `replaced`."""


class UnloadableEngine(Protocol):
    @property
    def process_state(self) -> EngineState:
        """State of the process, also while the server drains."""

    @property
    def is_at_work(self) -> bool: ...

    @property
    def has_requests(self) -> bool:
        """Includes requests that wait for its process."""

    @property
    def last_use_s(self) -> float: ...

    @property
    def failed_s(self) -> float | None:
        """Time on the keeper's clock."""

    def status(self) -> EngineStatus: ...

    def wake(self) -> None: ...

    async def settled(self) -> EngineState: ...

    async def sleep(self) -> None: ...

    def hold_back(self) -> None: ...

    def release(self) -> None:
        """Send the requests that were held back."""


@dataclass(eq=False)
class KeeperEntry:
    name: str
    engine: UnloadableEngine
    need: MemoryNeed
    keep_alive_s: float | None
    """Time, or None for never."""
    is_pinned: bool
    limit_bytes: int | None = None
    """Own limit, or None for the budget's."""
    wanted_s: float | None = None
    """Begin of its wait for loading."""
    is_held_back: bool = False
    """True if it takes no requests until it has made room for another model."""
    is_replaced: bool = False
    """True if another model has its name; it is unloaded after its last request."""
    reloads_itself: bool = False
    """True for the only model, which is reloaded after a failure without a request."""
    num_tries: int = 0
    last_try_s: float = float("-inf")
    attempt_started: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_in_memory(self) -> bool:
        return self.engine.process_state not in _OUT_OF_MEMORY

    @property
    def is_evictable(self) -> bool:
        is_busy = self.engine.is_at_work if self.is_held_back else self.engine.has_requests
        return self.engine.process_state is EngineState.READY and not self.is_pinned and not is_busy

    @property
    def resident(self) -> ResidentModel:
        return ResidentModel(
            name=self.name,
            num_bytes=self.need.total,
            last_use_s=self.engine.last_use_s,
            is_evictable=self.is_evictable,
        )

    def tries(self, now_s: float) -> int:
        is_series = self.reloads_itself and now_s - self.last_try_s < _CALM_S
        return self.num_tries if is_series else 0


class ModelKeeper:
    """Loads and unloads models on one event loop's thread. Only `run` starts either, so that no decision is
    based on a changing state; loads run concurrently."""

    def __init__(
        self,
        budget: MemoryBudget,
        observer: LoadObserver,
        *,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.budget = budget
        self._observer = observer
        self._clock = clock
        self._patience_s = patience_s
        self._models: list[KeeperEntry] = []
        self._news = asyncio.Event()
        self._loads: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """Held while models are unloaded."""

    def add(self, model: KeeperEntry) -> None:
        self._models.append(model)

    def remove(self, model: KeeperEntry) -> None:
        self._models.remove(model)

    def why_never(self, model: KeeperEntry) -> str | None:
        if model.limit_bytes is not None:
            own = MemoryBudget(model.limit_bytes, option="its 'memory':")
            if (why := own.why_never(model.name, model.need, [])) is not None:
                return why
        pinned = [one.resident for one in self._models if one.is_pinned and one is not model]
        return self.budget.why_never(model.name, model.need, pinned)

    def require_room(self, model: KeeperEntry) -> None:
        """Raise ModelTooLarge if it can never be loaded."""
        if (why := self.why_never(model)) is not None:
            raise ModelTooLarge(f"It cannot be loaded: {why}.")

    def fits_beside(self, model: KeeperEntry) -> bool:
        """Return True if it fits now, after unloading idle models."""
        return self._to_unload(model) is not None

    def may_retry(self, model: KeeperEntry) -> bool:
        failed_s, now_s = model.engine.failed_s, self._clock()
        wait_s = min(RETRY_S * 2.0 ** model.tries(now_s), _LONGEST_RETRY_S)
        return failed_s is not None and now_s - failed_s >= wait_s

    def want(self, model: KeeperEntry) -> None:
        """Request the model. Raises ModelTooLarge, and EngineUnavailable if it has just failed or was
        replaced."""
        if model.is_replaced:
            raise unavailable(model.engine.status())
        self.require_room(model)
        if model.engine.process_state is EngineState.FAILED and not self.may_retry(model):
            raise unavailable(model.engine.status())
        self._want(model)

    async def load(self, model: KeeperEntry) -> None:
        """Load and wait. Raises ModelTooLarge, ModelNotLoaded."""
        self.require_room(model)
        if not model.is_in_memory:
            self._want(model)
            await model.attempt_started.wait()
        if await model.engine.settled() is not EngineState.READY:
            status = model.engine.status()
            raise ModelNotLoaded(
                f"The model '{model.name}' is not loaded: {status.reason or status.state.value}."
            )

    async def unload(self, model: KeeperEntry) -> None:
        """Wait for the process to end. Raises ModelInUse."""
        async with self._turn:
            if not model.is_in_memory:
                return
            if model.engine.has_requests:
                status = model.engine.status()
                raise ModelInUse(model.name, sum([*status.running.values(), *status.waiting.values()]))
            await self._sleep(model, "asked")

    async def run(self) -> None:
        try:
            while True:
                async with self._turn:
                    await self._unload_and_load()
                await self._wait_for_news()
        finally:
            for task in self._loads:
                task.cancel()

    async def _wait_for_news(self) -> None:
        """Wait with a timeout, because nothing signals that a model is idle."""
        is_wanted = any(model.wanted_s is not None for model in self._models)
        delay_s = _LOOK_SOON_S if is_wanted else _LOOK_S
        # Not `wait_for`, which can swallow a cancellation before Python 3.12.
        alarm = asyncio.get_running_loop().call_later(delay_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()
        self._news.clear()

    def _want(self, model: KeeperEntry) -> None:
        if model.wanted_s is None:
            model.wanted_s = self._clock()
            model.attempt_started.clear()
        self._news.set()

    async def _unload_and_load(self) -> None:
        await self._unload_idle()
        for model in self._models:
            may_come = model.reloads_itself and not model.is_replaced and self.why_never(model) is None
            if may_come and model.engine.process_state is EngineState.FAILED and self.may_retry(model):
                self._want(model)
        wanted = [(model.wanted_s, model) for model in self._models if model.wanted_s is not None]
        for _, model in sorted(wanted, key=lambda pair: pair[0]):
            await self._load_if_room(model)
        if all(model.wanted_s is None for model in self._models):
            for model in self._models:
                if model.is_held_back:
                    model.is_held_back = False
                    model.engine.release()

    async def _unload_idle(self) -> None:
        for model in list(self._models):
            if not model.is_evictable:
                continue
            idle_s = self._clock() - model.engine.last_use_s
            if model.is_replaced:
                await self._sleep(model, "replaced")
            elif model.keep_alive_s is not None and idle_s >= model.keep_alive_s:
                await self._sleep(model, "idle")

    async def _load_if_room(self, model: KeeperEntry) -> None:
        if model.is_in_memory or model.engine.process_state is EngineState.STOPPED:
            self._started(model)
            return
        going = self._to_unload(model)
        if going is None:
            self._hold_one_back(model)
            return
        for one in going:
            if not one.is_evictable:  # a request has come while another ended
                return
            await self._sleep(one, "room")
        self._load(model)

    def _to_unload(self, model: KeeperEntry) -> list[KeeperEntry] | None:
        residents = [one for one in self._models if one.is_in_memory and one is not model]
        chosen = self.budget.to_unload(model.need.total, [one.resident for one in residents])
        return None if chosen is None else [residents[index] for index in chosen]

    def _hold_one_back(self, model: KeeperEntry) -> None:
        assert model.wanted_s is not None
        busy = [
            one
            for one in self._models
            if one.engine.process_state is EngineState.READY and not one.is_pinned and one is not model
        ]
        held = [one for one in busy if one.is_held_back]
        for one in held:
            one.engine.hold_back()  # again: its process may be a new one since
        if not busy or held or self._clock() - model.wanted_s < self._patience_s:
            return
        one = min(busy, key=lambda one: one.engine.last_use_s)
        logger.info("%s will be unloaded for %s when its requests have ended", one.name, model.name)
        one.is_held_back = True
        one.engine.hold_back()

    async def _sleep(self, model: KeeperEntry, why: str) -> None:
        logger.info("unloading %s (%s)", model.name, why)
        model.is_held_back = False
        await model.engine.sleep()
        self._observer.model_unloaded(model.name, why)
        if model.engine.has_requests:  # they were held back, or have come meanwhile
            self._want(model)

    def _load(self, model: KeeperEntry) -> None:
        if model.engine.process_state not in (EngineState.ASLEEP, EngineState.FAILED):
            self._started(model)
            return
        logger.info("loading %s: %s", model.name, model.need)
        if model.engine.process_state is EngineState.FAILED:
            now_s = self._clock()
            model.num_tries, model.last_try_s = model.tries(now_s) + 1, now_s
        model.engine.wake()
        self._started(model)
        task = asyncio.create_task(self._observe_load(model))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def _started(self, model: KeeperEntry) -> None:
        model.wanted_s = None
        model.attempt_started.set()

    async def _observe_load(self, model: KeeperEntry) -> None:
        started_s = self._clock()
        state = await model.engine.settled()
        if state is EngineState.READY:
            self._observer.model_loaded(model.name, self._clock() - started_s)
        elif state is EngineState.FAILED:
            self._observer.model_not_loaded(model.name)
        self._news.set()
