"""All models of a server with their engines: run together, loaded, unloaded, replaced and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from openai_cpu_server.adapter_options import AdapterSource
from openai_cpu_server.contract.adapter import AdapterState
from openai_cpu_server.contract.engine import EngineState, LiveRequest
from openai_cpu_server.dispatch.dispatcher import Dispatcher
from openai_cpu_server.dispatch.requests.delivery import Totals
from openai_cpu_server.errors import (
    AdapterFailed,
    EngineUnavailable,
    ModelNotLoaded,
    ModelTooLarge,
    ServerError,
    StartupError,
)
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.models.keeper import LoadObserver, ModelKeeper
from openai_cpu_server.models.memory_budget import MemoryBudget
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.routing.checks import problem
from openai_cpu_server.models.routing.router import Router
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.serving.file_content import Stamp
from openai_cpu_server.serving.house import Builder, EnginesObserver, House
from openai_cpu_server.serving.plans import ModelPlan, planned_routers
from openai_cpu_server.settings import Settings

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_BUDGET_SHARE = 0.8
"""The rest is for the API process, for requests' bodies, and for what else grows on the machine."""
_LAST_CALLS_S = 2.0
"""A request that has chosen a model and is still being resolved gets so long to be submitted."""
_LOOK_S = 0.05
_LOOK_AT_FILES_S = 1.0
"""A sleeping model whose file has changed is read anew within so long: its requests must be tokenised for the
file that will be loaded."""


class FleetObserver(EnginesObserver, LoadObserver, Protocol):
    """It is told of all."""


class Fleet:
    """Owns the engines. All methods belong to one event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        plans: Sequence[ModelPlan],
        observer: FleetObserver,
        readers: ReaderPool,
    ) -> None:
        """It owns the readers from here on. Raises StartupError where the only model cannot be read, and for
        a router that leads nowhere."""
        self._readers = readers
        try:
            self._build_all(settings, plans, observer)
        except BaseException:
            readers.close()
            raise

    def _build_all(self, settings: Settings, plans: Sequence[ModelPlan], observer: FleetObserver) -> None:
        is_alone = len(plans) == 1 and settings.memory is None
        budget = MemoryBudget(sys.maxsize if is_alone else _budget_bytes(settings))
        self._keeper = ModelKeeper(budget, observer)
        self._builder = Builder(settings, observer, self._keeper, self._readers, num_models=len(plans))
        self._build = self._builder.alone if is_alone else self._builder.one_of_several
        self._is_alone = is_alone
        self._houses: list[House] = []
        self._runs: dict[Dispatcher, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._replacing: dict[str, asyncio.Lock] = {plan.name: asyncio.Lock() for plan in plans}
        self._has_failed: asyncio.Future[None] | None = None
        self._retired_totals = Totals()
        for plan in sorted(plans, key=lambda plan: not plan.is_pinned):
            self._keeper_add(self._build(plan))
        self._houses.sort(key=lambda house: plans.index(house.plan))
        self.registry = ModelRegistry([house.served for house in self._houses], self._routers(settings))

    # -- an engine of all engines -------------------------------------------------------------------------

    @property
    def default(self) -> Dispatcher:
        return self._houses[0].engine

    @property
    def totals(self) -> Totals:
        parts = [*(house.engine.totals for house in self._houses), self._retired_totals]
        return Totals(
            requests=sum(part.requests for part in parts),
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            output_tokens=sum(part.output_tokens for part in parts),
        )

    def requests(self) -> list[LiveRequest]:
        return [request for model in self.registry for request in model.engine.requests()]

    @property
    def readers(self) -> ReaderPool:
        return self._readers

    async def run(self) -> None:
        """Serve until `close`. Raises `StartupError` if the only model cannot be loaded."""
        self._has_failed = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(self._keeper.run())
        for house in self._houses:
            self._start(house.engine)
        if not self._is_alone:
            self._load_first()
        self._spawn(self._look_at_files())
        try:
            await asyncio.wait([self._has_failed, keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            keeping.cancel()
            for task in self._others:
                task.cancel()
        for done in (self._has_failed, keeping):
            if done.done() and not done.cancelled():
                done.result()

    async def drain(self, seconds: float) -> None:
        """Accept nothing more, and give what runs or waits this long to end."""
        await asyncio.gather(*(engine.drain(seconds) for engine in self._engines))

    async def close(self) -> None:
        """End all requests and processes."""
        await asyncio.gather(*(engine.close() for engine in self._engines))
        await asyncio.to_thread(self._readers.close)
        if self._has_failed is not None and not self._has_failed.done():
            self._has_failed.set_result(None)

    def kill(self) -> None:
        """For a `close` that is not to wait, not even if it waits already."""
        for engine in self._engines:
            engine.kill()

    # -- for administrators -------------------------------------------------------------------------------

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        """Returns when it is loaded. A file that has changed since, or `replace`, is loaded beside the model
        and takes its place. Raises ModelTooLarge, ModelNotLoaded, EngineUnavailable."""
        async with self._replacing[model.name]:
            house = self._house_of(model.name)
            if house.engine.is_ending:
                raise EngineUnavailable("The server is about to end.", EngineState.DRAINING.retry_after_s)
            if replace or house.is_broken or Stamp.of(house.plan.path) != house.stamp:
                return (await self._replaced(house)).served
            await self._keeper.load(house.kept)
            return house.served

    async def unload(self, model: ServedModel) -> None:
        """Returns when its process has ended. Raises ModelInUse."""
        await self._keeper.unload(self._house_of(model.name).kept)

    # -- inside -------------------------------------------------------------------------------------------

    def _routers(self, settings: Settings) -> list[Router]:
        """Raises StartupError with one line."""
        planned = planned_routers(settings, [house.plan for house in self._houses])
        kinds = {
            name: None if house.is_broken else house.served.kind
            for house in self._houses
            for name in house.plan.names
        }
        if (said := problem(planned, kinds)) is not None:
            raise StartupError(said)
        return [Router(options) for options in planned]

    @property
    def _engines(self) -> Iterable[Dispatcher]:
        return list(self._runs) or [house.engine for house in self._houses]

    def _load_first(self) -> None:
        """The default and those that are pinned; the others sleep until they are asked for."""
        for index, house in enumerate(self._houses):
            if (index == 0 or house.plan.is_pinned) and house.engine.state is EngineState.ASLEEP:
                with contextlib.suppress(ServerError):
                    self._keeper.want(house.kept)

    def _start(self, engine: Dispatcher) -> None:
        task = asyncio.create_task(engine.run())
        self._runs[engine] = task
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An engine that could not be run ends all."""
        error = None if task.cancelled() else task.exception()
        if error is not None and self._has_failed is not None and not self._has_failed.done():
            self._has_failed.set_exception(error)

    def _keeper_add(self, house: House) -> None:
        self._keeper.add(house.kept)
        self._houses.append(house)

    def _house_of(self, name: str) -> House:
        return next(house for house in self._houses if house.plan.name == name)

    async def _look_at_files(self) -> None:
        """Sleeping models keep up with their files. One that is loaded waits for an administrator's word."""
        seen: dict[str, Stamp | None] = {}
        while True:
            await asyncio.sleep(_LOOK_AT_FILES_S)
            for house in list(self._houses):
                stamp = Stamp.of(house.plan.path)
                if house.kept.is_in_memory or stamp in (None, house.stamp, seen.get(house.plan.name)):
                    continue
                seen[house.plan.name] = stamp  # what cannot be read now is tried again when it changes again
                try:
                    await self._read_anew(house)
                except (ServerError, OSError) as error:  # such as a file that goes while it is being read
                    logger.warning(
                        "%s: %s has changed, and stays unread: %s", house.plan.name, house.plan.path, error
                    )

    async def _read_anew(self, old: House) -> None:
        async with self._replacing[old.plan.name]:
            if old not in self._houses or old.kept.is_in_memory or old.engine.residency.has_requests:
                return
            self._take_place(old, await self._built_anew(old))
            logger.info("%s: %s has changed, and was read anew", old.plan.name, old.plan.path)

    async def _built_anew(self, old: House) -> House:
        """It sleeps, and runs. Raises ModelTooLarge, ModelNotLoaded."""
        new = await asyncio.to_thread(self._build_anew, _with_adapters(old))
        if (why := self._keeper.why_never(new.kept)) is not None:
            raise ModelTooLarge(f"It cannot be loaded: {why}.")
        if new.is_broken:
            raise ModelNotLoaded(f"The model '{new.plan.name}' is not loaded: {new.engine.status().reason}")
        self._keeper.add(new.kept)
        self._start(new.engine)
        return new

    def _take_place(self, old: House, new: House) -> None:
        self._houses[self._houses.index(old)] = new
        self.registry.replace(old.served, new.served)
        old.kept.is_replaced, old.kept.is_pinned = True, False
        self._spawn(self._retire(old))

    async def _replaced(self, old: House) -> House:
        """The new one serves; the old one goes with its last request."""
        new = await self._built_anew(old)
        try:
            was_loaded = await self._load_beside(old, new)
            if was_loaded:
                await _carry_adapters(old.engine, new.engine)
        except BaseException:
            self._keeper.remove(new.kept)
            self._spawn(self._end(new.engine))
            raise
        self._take_place(old, new)
        if not was_loaded:
            await self._keeper.load(new.kept)
            await _carry_adapters(old.engine, new.engine)
        logger.info("%s: %s has been loaded anew", new.plan.name, new.plan.path)
        return new

    def _build_anew(self, plan: ModelPlan) -> House:
        again = self._builder.alone_again if self._is_alone else self._builder.one_of_several
        return again(plan)

    async def _load_beside(self, old: House, new: House) -> bool:
        """False: there is no room for both. Then requests wait for the new one until the old one has gone."""
        if old.kept.is_in_memory and not self._keeper.fits_beside(new.kept):
            return False
        await self._keeper.load(new.kept)
        return True

    async def _retire(self, old: House) -> None:
        """End it after its last request, and after the last that has chosen it already."""
        await asyncio.sleep(_LAST_CALLS_S)
        while old.engine.residency.has_requests:  # noqa: ASYNC110 (once for a file that has changed)
            await asyncio.sleep(_LOOK_S)
        self.registry.forget(old.served)
        self._keeper.remove(old.kept)
        self._retired_totals = self._sum_with(old.engine.totals)
        await self._end(old.engine)

    def _sum_with(self, totals: Totals) -> Totals:
        known = self._retired_totals
        return Totals(
            requests=known.requests + totals.requests,
            prompt_tokens=known.prompt_tokens + totals.prompt_tokens,
            output_tokens=known.output_tokens + totals.output_tokens,
        )

    async def _end(self, engine: Dispatcher) -> None:
        await engine.close()
        task = self._runs.pop(engine, None)
        if task is not None:
            await asyncio.wait([task])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


def _with_adapters(house: House) -> ModelPlan:
    """Its plan, with the adapters that it has now: some may have come and gone since its start."""
    offered = [status.adapter for status in house.engine.adapters()]
    adapters = tuple(AdapterSource(adapter.name, adapter.path, adapter.scale) for adapter in offered)
    return msgspec.structs.replace(house.plan, adapters=adapters)


async def _carry_adapters(old: Dispatcher, new: Dispatcher) -> None:
    """Those that have come or gone while the new one was loading."""
    wanted = {s.adapter.name: s.adapter for s in old.adapters() if s.state is not AdapterState.FAILED}
    had = {status.adapter.name: status.adapter.key for status in new.adapters()}
    failed = {status.adapter.name for status in old.adapters()} - wanted.keys()
    for name in had.keys() - wanted.keys() - failed:
        new.unload_adapter(name)
    for name, adapter in wanted.items():
        if had.get(name) != adapter.key:
            with contextlib.suppress(AdapterFailed):  # it has said why, and it is for the old file only
                await new.load_adapter(adapter)


def _budget_bytes(settings: Settings) -> int:
    if settings.memory is not None:
        return settings.memory * _MIB
    return int(_BUDGET_SHARE * Machine().free_memory())
