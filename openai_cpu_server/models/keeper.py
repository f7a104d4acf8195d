"""Loads models when they are asked for, and unloads others so that all of them fit into memory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from openai_cpu_server.contract.engine import EngineState, EngineStatus, unavailable
from openai_cpu_server.errors import ModelInUse, ModelNotLoaded, ModelTooLarge

_MIB = 1024 * 1024


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of what a model takes while it is loaded, in bytes."""

    weights: int
    """Its files, those of its draft model included."""
    cells: int
    """The KV pools of both."""
    buffers: int
    """What steps are computed in, and the process itself."""
    cache: int = 0
    """The most that its prefix cache may hold."""

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.buffers + self.cache

    def __str__(self) -> str:
        return (
            f"{_mib(self.total)} (weights {_mib(self.weights)}, KV cells {_mib(self.cells)}, "
            f"buffers {_mib(self.buffers)}, prefix cache {_mib(self.cache)})"
        )


class ResidentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is loaded, or being loaded."""

    name: str
    num_bytes: int
    last_use_s: float
    may_go: bool
    """It is not pinned, and has no requests."""


class MemoryBudget:
    """`limit_bytes` are for all models together."""

    def __init__(self, limit_bytes: int, *, option: str = "--memory") -> None:
        """`option`: what sets the limit, as users know it."""
        self.limit_bytes = limit_bytes
        self._option = option

    def why_never(self, name: str, need: MemoryNeed, pinned: Iterable[ResidentModel]) -> str | None:
        """The arithmetic, if it cannot even be loaded alone beside those that are pinned; None: it can."""
        stay = [one for one in pinned if one.name != name]
        left = self.limit_bytes - sum(one.num_bytes for one in stay)
        if need.total <= left:
            return None
        beside = "".join(f" - {_mib(one.num_bytes)} of '{one.name}', which is pinned" for one in stay)
        return (
            f"the model '{name}' needs {need}, and there are {_mib(max(0, left))} "
            f"({self._option} {self.limit_bytes // _MIB} MiB{beside})"
        )

    def to_unload(self, num_bytes: int, residents: Sequence[ResidentModel]) -> tuple[int, ...] | None:
        """The indices of those who have to go for so many bytes, the least recently used first, and nobody in
        vain. None: those who may go are not enough."""
        missing = num_bytes + sum(one.num_bytes for one in residents) - self.limit_bytes
        chosen: list[int] = []
        for index in sorted(range(len(residents)), key=lambda index: residents[index].last_use_s):
            one = residents[index]
            if missing > 0 and one.may_go and one.num_bytes > 0:
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
"""A model that has failed is tried again for a request that comes so much later. For one that comes back by
itself the time doubles with each try that follows the one before within `_CALM_S`."""
_LONGEST_RETRY_S = 300.0
_CALM_S = 900.0
_PATIENCE_S = 10.0
"""So long a model waits for others to become idle. Then one of them is sent nothing new, until it is."""
_LOOK_S, _LOOK_SOON_S = 1.0, 0.05
_OUT_OF_MEMORY = (EngineState.ASLEEP, EngineState.FAILED, EngineState.STOPPED)


class LoadObserver(Protocol):
    def model_loaded(self, model: str, seconds: float) -> None: ...

    def model_not_loaded(self, model: str) -> None: ...

    def model_unloaded(self, model: str, why: str) -> None:
        """`why`: `idle`, `room`, `asked` or `replaced`."""


class UnloadableEngine(Protocol):
    """An engine whose process can be ended and started again."""

    @property
    def process_state(self) -> EngineState:
        """Also while the server drains: those who wait are still served."""

    @property
    def is_at_work(self) -> bool:
        """Its process has some requests."""

    @property
    def has_requests(self) -> bool:
        """Some live, in its process or waiting for one."""

    @property
    def last_use_s(self) -> float: ...

    @property
    def failed_s(self) -> float | None:
        """When it failed, on the keeper's clock; None: it has not."""

    def status(self) -> EngineStatus: ...

    def wake(self) -> None: ...

    async def settled(self) -> EngineState: ...

    async def sleep(self) -> None: ...

    def hold_back(self) -> None: ...

    def release(self) -> None:
        """Send it again what was held back."""


@dataclass(eq=False)
class KeptModel:
    """A model that the keeper knows."""

    name: str
    engine: UnloadableEngine
    need: MemoryNeed
    keep_alive_s: float | None
    """Idle for so long, it is unloaded; None: never."""
    is_pinned: bool
    limit_bytes: int | None = None
    """What it may take at most; None: what the budget has."""
    wanted_s: float | None = None
    """Since when it waits for being loaded; None: it does not."""
    is_held_back: bool = False
    """It is to end what its process has, and to make room then."""
    is_replaced: bool = False
    """Another has taken its place: it goes with its last request."""
    comes_back: bool = False
    """It is the only one: where it has failed it is tried again by itself: no request may come any more."""
    num_tries: int = 0
    """Loads in a row for which it had failed."""
    last_try_s: float = float("-inf")
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """It is being loaded."""

    @property
    def is_in_memory(self) -> bool:
        return self.engine.process_state not in _OUT_OF_MEMORY

    @property
    def may_go(self) -> bool:
        is_busy = self.engine.is_at_work if self.is_held_back else self.engine.has_requests
        return self.engine.process_state is EngineState.READY and not self.is_pinned and not is_busy

    @property
    def resident(self) -> ResidentModel:
        return ResidentModel(
            name=self.name, num_bytes=self.need.total, last_use_s=self.engine.last_use_s, may_go=self.may_go
        )

    def is_idle(self, now_s: float) -> bool:
        return self.keep_alive_s is not None and now_s - self.engine.last_use_s >= self.keep_alive_s

    def tries(self, now_s: float) -> int:
        is_series = self.comes_back and now_s - self.last_try_s < _CALM_S
        return self.num_tries if is_series else 0

    def note_try(self, now_s: float) -> None:
        self.num_tries, self.last_try_s = self.tries(now_s) + 1, now_s


class ModelKeeper:
    """All methods belong to one event loop's thread. Only `run` loads and unloads, one model after another,
    so that nothing is decided on what is just changing; models load beside each other nevertheless."""

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
        self._models: list[KeptModel] = []
        self._news = asyncio.Event()
        self._loads: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        """Whoever unloads holds it."""

    def __iter__(self) -> Iterator[KeptModel]:
        return iter(list(self._models))

    def add(self, model: KeptModel) -> None:
        self._models.append(model)

    def remove(self, model: KeptModel) -> None:
        self._models.remove(model)

    def why_never(self, model: KeptModel) -> str | None:
        """Why it can never be loaded, with the arithmetic; None: it can."""
        if model.limit_bytes is not None:
            own = MemoryBudget(model.limit_bytes, option="its 'memory':")
            if (why := own.why_never(model.name, model.need, [])) is not None:
                return why
        pinned = [one.resident for one in self._models if one.is_pinned and one is not model]
        return self.budget.why_never(model.name, model.need, pinned)

    def require_room(self, model: KeptModel) -> None:
        """Raises ModelTooLarge for one that can never be loaded."""
        if (why := self.why_never(model)) is not None:
            raise ModelTooLarge(f"It cannot be loaded: {why}.")

    def fits_beside(self, model: KeptModel) -> bool:
        """Whether it can be loaded now, if need be after others are unloaded that may go."""
        return self._to_unload(model) is not None

    def may_retry(self, model: KeptModel) -> bool:
        """It has failed, long enough ago for another try."""
        failed_s = model.engine.failed_s
        if failed_s is None:
            return False
        now_s = self._clock()
        wait_s = min(RETRY_S * 2.0 ** model.tries(now_s), _LONGEST_RETRY_S)
        return now_s - failed_s >= wait_s

    def want(self, model: KeptModel) -> None:
        """A request needs it. Raises ModelTooLarge, and EngineUnavailable for one that has just failed, or
        whose place another has taken."""
        if model.is_replaced:
            raise unavailable(model.engine.status())
        self.require_room(model)
        if model.engine.process_state is EngineState.FAILED and not self.may_retry(model):
            raise unavailable(model.engine.status())
        self._want(model)

    async def load(self, model: KeptModel) -> None:
        """Returns when it is loaded. Raises ModelTooLarge, ModelNotLoaded."""
        self.require_room(model)
        if not model.is_in_memory:
            self._want(model)
            await model.begun.wait()
        if await model.engine.settled() is not EngineState.READY:
            status = model.engine.status()
            raise ModelNotLoaded(
                f"The model '{model.name}' is not loaded: {status.reason or status.state.value}."
            )

    async def unload(self, model: KeptModel) -> None:
        """Returns when its process has ended. Raises ModelInUse while it has requests."""
        async with self._turn:
            if not model.is_in_memory:
                return
            if model.engine.has_requests:
                status = model.engine.status()
                raise ModelInUse(model.name, sum([*status.running.values(), *status.waiting.values()]))
            await self._sleep(model, "asked")

    async def run(self) -> None:
        """Loads and unloads until it is cancelled."""
        try:
            while True:
                async with self._turn:
                    await self._unload_and_load()
                await self._wait_for_news()
        finally:
            for task in self._loads:
                task.cancel()

    async def _wait_for_news(self) -> None:
        """Not for ever: that a model is idle, and that one has ended its work, nobody tells."""
        is_wanted = any(model.wanted_s is not None for model in self._models)
        delay_s = _LOOK_SOON_S if is_wanted else _LOOK_S
        # Not `wait_for`, which can swallow a cancellation before Python 3.12.
        alarm = asyncio.get_running_loop().call_later(delay_s, self._news.set)
        try:
            await self._news.wait()
        finally:
            alarm.cancel()
        self._news.clear()

    def _want(self, model: KeptModel) -> None:
        if model.wanted_s is None:
            model.wanted_s = self._clock()
            model.begun.clear()
        self._news.set()

    async def _unload_and_load(self) -> None:
        await self._unload_idle()
        self._bring_back()
        wanted = [(model.wanted_s, model) for model in self._models if model.wanted_s is not None]
        for _, model in sorted(wanted, key=lambda pair: pair[0]):
            await self._load_if_room(model)
        if all(model.wanted_s is None for model in self._models):
            self._release_all()

    def _bring_back(self) -> None:
        for model in self._models:
            may_come = model.comes_back and not model.is_replaced and self.why_never(model) is None
            if may_come and model.engine.process_state is EngineState.FAILED and self.may_retry(model):
                self._want(model)

    def _release_all(self) -> None:
        """Room was found elsewhere, or is not wanted any more."""
        for model in self._models:
            if model.is_held_back:
                model.is_held_back = False
                model.engine.release()

    async def _unload_idle(self) -> None:
        for model in list(self._models):
            if model.is_replaced and model.may_go:
                await self._sleep(model, "replaced")
            elif model.may_go and model.is_idle(self._clock()):
                await self._sleep(model, "idle")

    async def _load_if_room(self, model: KeptModel) -> None:
        """Load it if there is room, or make some."""
        if model.is_in_memory or model.engine.process_state is EngineState.STOPPED:
            self._begun(model)
            return
        going = self._to_unload(model)
        if going is None:
            self._hold_one_back(model)
            return
        for one in going:
            if not one.may_go:  # a request has come while another ended
                return
            await self._sleep(one, "room")
        self._load(model)

    def _to_unload(self, model: KeptModel) -> list[KeptModel] | None:
        residents = [one for one in self._models if one.is_in_memory and one is not model]
        chosen = self.budget.to_unload(model.need.total, [one.resident for one in residents])
        return None if chosen is None else [residents[index] for index in chosen]

    def _hold_one_back(self, model: KeptModel) -> None:
        """After a while the one that was loaded first, of those in use, is sent nothing new."""
        assert model.wanted_s is not None
        busy = [
            one
            for one in self._models
            if one.engine.process_state is EngineState.READY and not one.is_pinned and one is not model
        ]
        held = [one for one in busy if one.is_held_back]
        for one in held:
            one.engine.hold_back()  # again: its process may be a new one since
        if not busy or held:
            return
        if self._clock() - model.wanted_s < self._patience_s:
            return
        one = min(busy, key=lambda one: one.engine.last_use_s)
        logger.info("%s is to make room for %s when it has ended what it computes", one.name, model.name)
        one.is_held_back = True
        one.engine.hold_back()

    async def _sleep(self, model: KeptModel, why: str) -> None:
        logger.info("unloading %s (%s)", model.name, why)
        model.is_held_back = False
        await model.engine.sleep()
        self._observer.model_unloaded(model.name, why)
        if model.engine.has_requests:  # they were held back, or have come meanwhile
            self._want(model)

    def _load(self, model: KeptModel) -> None:
        if model.engine.process_state not in (EngineState.ASLEEP, EngineState.FAILED):
            self._begun(model)
            return
        logger.info("loading %s: %s", model.name, model.need)
        if model.engine.process_state is EngineState.FAILED:
            model.note_try(self._clock())
        model.engine.wake()
        self._begun(model)
        task = asyncio.create_task(self._tell_how_it_went(model))
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    def _begun(self, model: KeptModel) -> None:
        model.wanted_s = None
        model.begun.set()

    async def _tell_how_it_went(self, model: KeptModel) -> None:
        started_s = self._clock()
        state = await model.engine.settled()
        if state is EngineState.READY:
            self._observer.model_loaded(model.name, self._clock() - started_s)
        elif state is EngineState.FAILED:
            self._observer.model_not_loaded(model.name)
        self._news.set()
