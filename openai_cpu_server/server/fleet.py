"""All models of a server with their engines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from openai_cpu_server.config.adapters import AdapterSource
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.engine import EngineState, LiveRequest
from openai_cpu_server.contract.model_info import AdapterState
from openai_cpu_server.engine_client.live import ServedTotals
from openai_cpu_server.errors import (
    AdapterFailed,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    ModelNotLoaded,
    ServerError,
    StartupError,
)
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.models.grammars import ModelGrammars
from openai_cpu_server.models.keeper import MemoryBudget, ModelKeeper
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.telemetry import Telemetry
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.server.model_builder import FileStamp, LoadedModel, ModelBuilder, OwnEngine, file_stamp
from openai_cpu_server.server.plans import ModelPlan, planned_routers

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_BUDGET_SHARE = 0.8
"""Leave the rest to the API process, request bodies and the machine."""
_LAST_CALLS_S = 2.0
"""Time within which a request that has chosen a model is submitted."""
_LOOK_S = 0.05
_PREPARE_S = 5.0
"""Interval of checks for an idle server, which may prepare for schemas."""
_LOOK_AT_FILES_S = 1.0
"""Interval of checks for sleeping models' changed files, because requests are tokenized for the file that
will be loaded."""


class ModelFleet:
    """Owner of all models and engines, on one event loop's thread."""

    def __init__(
        self, settings: Settings, plans: Sequence[ModelPlan], telemetry: Telemetry, readers: ReaderPool
    ) -> None:
        """Take over the readers. Raises StartupError if no model can ever be served, or a router leads
        nowhere."""
        self.readers = readers
        may_grow = settings.allow_pull or settings.models_dir is not None
        self._is_alone = len(plans) == 1 and settings.memory is None and not may_grow
        limit_bytes = sys.maxsize
        if settings.memory is not None:
            limit_bytes = settings.memory * _MIB
        elif not self._is_alone:
            limit_bytes = int(_BUDGET_SHARE * Machine().free_memory())
        self._keeper = ModelKeeper(MemoryBudget(limit_bytes), telemetry.metrics)
        num_models = len(plans) + may_grow
        self._builder = ModelBuilder(settings, telemetry, self._keeper, readers, num_models, self._is_alone)
        try:
            self._models = self._built(plans)
            states = {model.plan.name: model.engine.status() for model in self._models}
            failed = {name: one.reason for name, one in states.items() if one.state is EngineState.FAILED}
            if len(failed) == len(states) and not may_grow:
                raise StartupError("; ".join(map(str, failed.values())))
            for name, reason in failed.items():
                logger.error("%s is not served: %s", name, reason)
            kinds = {
                name: None if model.is_broken else model.served.kind
                for model in self._models
                for name in model.plan.names
            }
            self.registry = ModelRegistry(
                [model.served for model in self._models],
                planned_routers(settings, plans, kinds),
                takes_any_name=settings.any_model_name,
            )
        except BaseException:
            readers.close()
            raise
        self._runs: dict[OwnEngine, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._replacing: dict[str, asyncio.Lock] = {plan.name: asyncio.Lock() for plan in plans}
        self._has_failed: asyncio.Future[None] | None = None
        self._retired_totals = ServedTotals()

    def _built(self, plans: Sequence[ModelPlan]) -> list[LoadedModel]:
        """Build pinned models first, whose memory counts first."""
        built: dict[str, LoadedModel] = {}
        for plan in sorted(plans, key=lambda plan: not plan.is_pinned):
            built[plan.name] = model = self._builder.build(plan)
            self._keeper.add(model.entry)
        return [built[plan.name] for plan in plans]

    # -- an engine of all engines -------------------------------------------------------------------------

    @property
    def default(self) -> OwnEngine:
        return self._models[0].engine

    @property
    def totals(self) -> ServedTotals:
        return _sum([*(model.engine.totals for model in self._models), self._retired_totals])

    def requests(self) -> list[LiveRequest]:
        return [request for model in self.registry for request in model.engine.requests()]

    async def run(self) -> None:
        """Serve until `close`. Raises StartupError if the only model cannot be loaded."""
        self._has_failed = asyncio.get_running_loop().create_future()
        keeping = asyncio.create_task(self._keeper.run())
        for model in self._models:
            self._start(model.engine)
        if not self._is_alone:
            self._want_first()
        self._spawn(self._look_at_files())
        if not self._models[0].is_broken:
            self._spawn(
                prepare_grammars(self._models[0].served, self.requests, self.readers.start_program_reader)
            )
        try:
            await asyncio.wait([self._has_failed, keeping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            keeping.cancel()
            for task in self._others:
                task.cancel()
        for done in (self._has_failed, keeping):
            if done.done() and not done.cancelled():
                done.result()

    def _want_first(self) -> None:
        """Load the default and pinned models; others sleep until requested."""
        for model in self._models:
            is_first = model is self._models[0] and not model.plan.waits_for_requests
            if (is_first or model.plan.is_pinned) and model.engine.state is EngineState.ASLEEP:
                with contextlib.suppress(ServerError):
                    self._keeper.want(model.entry)

    async def drain(self, seconds: float) -> None:
        """Reject new requests, and wait at most this long."""
        await asyncio.gather(*(engine.drain(seconds) for engine in self._engines))

    async def close(self) -> None:
        """Cancel all requests and stop all processes."""
        await asyncio.gather(*(engine.close() for engine in self._engines))
        await asyncio.to_thread(self.readers.close)
        if self._has_failed is not None and not self._has_failed.done():
            self._has_failed.set_result(None)

    def kill(self) -> None:
        """Make a pending or later `close` return at once."""
        for engine in self._engines:
            engine.kill()

    # -- for administrators -------------------------------------------------------------------------------

    async def load(self, model: ServedModel, *, replace: bool) -> ServedModel:
        """Load the model, or with `replace` or a changed file its successor. Raises ModelTooLarge,
        ModelNotFound, ModelNotLoaded, EngineUnavailable."""
        async with self._lock(model.name):
            serving = self._named(model.name)
            if serving.engine.is_ending:
                raise EngineUnavailable("The server is shutting down.", EngineState.DRAINING.retry_after_s)
            if replace or serving.is_broken or file_stamp(serving.plan.path) != serving.stamp:
                return (await self._replaced(serving)).served
            await self._keeper.load(serving.entry)
            return serving.served

    async def unload(self, model: ServedModel) -> None:
        """Wait for the process to end. Raises ModelInUse, ModelNotFound."""
        await self._keeper.unload(self._named(model.name).entry)

    async def add(self, plan: ModelPlan) -> ServedModel:
        """Serve a further model, which sleeps until requested. Raises ModelNotLoaded."""
        new = await asyncio.to_thread(self._builder.build, plan)
        if new.is_broken:
            raise ModelNotLoaded(f"The model '{plan.name}' is not served: {new.engine.status().reason}.")
        self._models.append(new)
        self._keeper.add(new.entry)
        self.registry.add(new.served)
        self._replacing[plan.name] = asyncio.Lock()
        self._start(new.engine)
        return new.served

    async def remove(self, model: ServedModel) -> None:
        """Release the model's files. Raises ModelInUse, ModelNotFound, and InvalidRequest for the default."""
        async with self._lock(model.name):
            old = self._named(model.name)
            if old is self._models[0]:
                raise InvalidRequest(f"'{model.name}' is the server's default model and cannot be removed.")
            await self._keeper.unload(old.entry)
            self._withdraw(old)

    async def dismiss(self, name: str) -> None:
        """Remove a model whose file has gone; it finishes its requests."""
        async with self._lock(name):
            self._withdraw(self._named(name))

    # -- inside -------------------------------------------------------------------------------------------

    @property
    def _engines(self) -> Iterable[OwnEngine]:
        return list(self._runs) or [model.engine for model in self._models]

    def _start(self, engine: OwnEngine) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and self._has_failed is not None and not self._has_failed.done():
                self._has_failed.set_exception(error)

        self._runs[engine] = task = asyncio.create_task(engine.run())
        task.add_done_callback(ended)

    def _named(self, name: str) -> LoadedModel:
        for model in self._models:
            if model.plan.name == name:
                return model
        raise ModelNotFound(name)  # it has been removed since it was chosen

    def _lock(self, name: str) -> asyncio.Lock:
        return self._replacing[self._named(name).plan.name]

    async def _look_at_files(self) -> None:
        """Rebuild sleeping models whose files have changed. An administrator must reload loaded ones."""
        seen: dict[str, FileStamp | None] = {}
        while True:
            await asyncio.sleep(_LOOK_AT_FILES_S)
            for model in list(self._models):
                plan, stamp = model.plan, file_stamp(model.plan.path)
                if model.entry.is_in_memory or stamp in (None, model.stamp, seen.get(plan.name)):
                    continue
                seen[plan.name] = stamp  # what cannot be read now is tried again when it changes again
                try:
                    await self._reread(model)
                except (ServerError, OSError) as error:  # such as a file that goes while it is being read
                    logger.warning("%s: %s has changed, and cannot be read: %s", plan.name, plan.path, error)

    async def _reread(self, old: LoadedModel) -> None:
        async with self._lock(old.plan.name):
            is_used = old.entry.is_in_memory or old.engine.residency.has_requests
            if old not in self._models or is_used:
                return
            self._take_place(old, await self._rebuilt(old))
            logger.info("%s: %s has changed, and was read again", old.plan.name, old.plan.path)

    async def _rebuilt(self, old: LoadedModel) -> LoadedModel:
        """Use the present adapters. Raises ModelTooLarge, ModelNotLoaded."""
        offered = [status.adapter for status in old.engine.adapters()]
        adapters = tuple(AdapterSource(adapter.name, adapter.path, adapter.scale) for adapter in offered)
        plan = msgspec.structs.replace(old.plan, adapters=adapters)
        new = await asyncio.to_thread(self._builder.build, plan, again=True)
        self._keeper.require_room(new.entry)
        if new.is_broken:
            raise ModelNotLoaded(f"The model '{new.plan.name}' is not loaded: {new.engine.status().reason}")
        self._keeper.add(new.entry)
        self._start(new.engine)
        return new

    async def _replaced(self, old: LoadedModel) -> LoadedModel:
        """Load the new model beside the old one if both fit. Otherwise requests wait until the old one has
        ended."""
        new = await self._rebuilt(old)
        has_room = not old.entry.is_in_memory or self._keeper.fits_beside(new.entry)
        try:
            if has_room:
                await self._keeper.load(new.entry)
                await _carry_adapters(old.engine, new.engine)
        except BaseException:
            self._keeper.remove(new.entry)
            self._spawn(self._end(new.engine))
            raise
        self._take_place(old, new)
        if not has_room:
            await self._keeper.load(new.entry)
            await _carry_adapters(old.engine, new.engine)
        logger.info("%s: %s was reloaded", new.plan.name, new.plan.path)
        return new

    def _take_place(self, old: LoadedModel, new: LoadedModel) -> None:
        self._models[self._models.index(old)] = new
        self.registry.replace(old.served, new.served)
        self._retire(old)

    def _withdraw(self, old: LoadedModel) -> None:
        self._models.remove(old)
        self.registry.remove(old.served)
        del self._replacing[old.plan.name]
        old.served.release_files()
        self._retire(old)

    def _retire(self, old: LoadedModel) -> None:
        old.entry.is_replaced, old.entry.is_pinned = True, False
        self._spawn(self._forget_when_idle(old))

    async def _forget_when_idle(self, old: LoadedModel) -> None:
        await asyncio.sleep(_LAST_CALLS_S)
        while old.engine.residency.has_requests:  # noqa: ASYNC110 (once for a file that has changed)
            await asyncio.sleep(_LOOK_S)
        self.registry.forget(old.served)
        self._keeper.remove(old.entry)
        self._retired_totals = _sum([self._retired_totals, old.engine.totals])
        await self._end(old.engine)

    async def _end(self, engine: OwnEngine) -> None:
        await engine.close()
        task = self._runs.pop(engine, None)
        if task is not None:
            await asyncio.wait([task])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)


async def prepare_grammars(
    model: ServedModel,
    requests: Callable[[], Collection[object]],
    start_reader: Callable[[], None],
    *,
    look_s: float = _PREPARE_S,
) -> None:
    """Let the first reader prepare while the model loads, if its clients have used grammars, and a reader for
    programs once the server is idle."""
    if model.grammars.mark is not None and model.grammars.mark.is_set:
        await _prepare(model.grammars)
    await asyncio.sleep(look_s)
    while model.engine.state is not EngineState.READY or requests():  # noqa: ASYNC110 (once in a life)
        await asyncio.sleep(look_s)
    await asyncio.to_thread(start_reader)
    await _prepare(model.grammars)


async def _prepare(grammars: ModelGrammars) -> None:
    with contextlib.suppress(ServerError):  # the first schema reports the failure to its client
        await asyncio.to_thread(grammars.prepare)


def _sum(parts: Sequence[ServedTotals]) -> ServedTotals:
    return ServedTotals(
        requests=sum(part.requests for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
    )


async def _carry_adapters(old: OwnEngine, new: OwnEngine) -> None:
    """Apply changes made while the new engine was loading."""
    wanted = {s.adapter.name: s.adapter for s in old.adapters() if s.state is not AdapterState.FAILED}
    had = {status.adapter.name: status.adapter.key for status in new.adapters()}
    failed = {status.adapter.name for status in old.adapters()} - wanted.keys()
    for name in had.keys() - wanted.keys() - failed:
        new.unload_adapter(name)
    for name, adapter in wanted.items():
        if had.get(name) != adapter.key:
            with contextlib.suppress(
                AdapterFailed
            ):  # the engine has logged the reason, and the adapter fits only the old file
                await new.load_adapter(adapter)
