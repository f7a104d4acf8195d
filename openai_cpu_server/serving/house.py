"""One served model, made of its plan: vocabulary, template, engine."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple, Protocol

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.dispatch.cores.shared_cores import SharedCores
from openai_cpu_server.dispatch.dispatcher import Dispatcher
from openai_cpu_server.dispatch.process.observer import EngineObserver
from openai_cpu_server.dispatch.requests.culprits import Culprits
from openai_cpu_server.errors import StartupError
from openai_cpu_server.models.broken import Unreadable
from openai_cpu_server.models.grammars import Grammars
from openai_cpu_server.models.keeper import Kept, ModelKeeper
from openai_cpu_server.models.memory_budget import MemoryNeed
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.prompt.tool_formats import format_for
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.serving.file_content import Stamp
from openai_cpu_server.serving.foresight import Share, foresee
from openai_cpu_server.serving.parts import ModelParts
from openai_cpu_server.serving.plans import ModelPlan
from openai_cpu_server.serving.supervised import supervised
from openai_cpu_server.settings import Settings

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_NOTHING = MemoryNeed(weights=0, cells=0, buffers=0)


class House(NamedTuple):
    """A served model, with its engine, which lives as long as somebody runs it."""

    plan: ModelPlan
    served: ServedModel
    engine: Dispatcher
    kept: Kept
    stamp: Stamp | None
    """As its file was when this was made."""
    is_broken: bool
    """Its file cannot be read."""


class EnginesObserver(Protocol):
    def of_model(self, model: str) -> EngineObserver:
        """Who is told of this model's engine."""
        ...


class Builder:
    """Makes the models of one server."""

    def __init__(
        self,
        settings: Settings,
        observer: EnginesObserver,
        keeper: ModelKeeper,
        readers: ReaderPool,
        *,
        num_models: int,
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._keeper = keeper
        self._readers = readers
        self._num_models = num_models
        self._culprits = Culprits(time.monotonic)
        self._cores = SharedCores(batch_floor=settings.batch_floor) if num_models > 1 else None

    def alone(self, plan: ModelPlan) -> House:
        """A model that has the machine for itself, and must be loaded at once. Raises StartupError."""
        return self._house(plan, None)

    def alone_again(self, plan: ModelPlan) -> House:
        """The same from a file that has changed. It sleeps: the old one serves until this one can."""
        try:
            return self._house(plan, None, begins_asleep=True)
        except StartupError as error:
            return self._broken(plan, str(error))

    def one_of_several(self, plan: ModelPlan) -> House:
        """A model that sleeps. What is wrong with its file is its state."""
        share = Share(self._keeper.budget.limit_bytes, self._num_models, plan.memory_bytes)
        try:
            house = self._house(plan, share)
        except StartupError as error:
            return self._broken(plan, str(error))
        if (why := self._keeper.why_never(house.kept)) is not None:
            logger.error("%s is not served: %s", plan.name, why)
            house.engine.residency.fail(why)
        return house

    def _house(self, plan: ModelPlan, share: Share | None, *, begins_asleep: bool = False) -> House:
        """Raises StartupError."""
        stamp, parts = Stamp.of(plan.path), ModelParts.open(self._settings, plan, share, self._readers)
        try:
            foreseen = foresee(parts.options, parts.read.tokenizer, share)
        except BaseException:
            parts.read.close()
            raise
        is_alone = share is None
        told = (parts.options, None) if is_alone else (foreseen.options, foreseen.info)
        engine = self._engine(plan.name, *told, begins_asleep=begins_asleep)
        kept = self._kept(plan, engine, foreseen.need)
        kept.comes_back = self._num_models == 1
        served = parts.served(engine, may_retry=lambda: self._keeper.may_retry(kept))
        return House(plan, served, engine, kept, stamp, is_broken=False)

    def _broken(self, plan: ModelPlan, reason: str) -> House:
        logger.error("%s is not served: %s", plan.name, reason)
        engine = self._engine(plan.name, EngineOptions(model_path=str(plan.path)), None, begins_asleep=True)
        engine.residency.fail(reason)
        unreadable = Unreadable(reason)
        served = ServedModel(
            names=plan.names,
            created=int(time.time()),
            engine=engine,
            tokenizer=unreadable,
            prompts=unreadable,
            tool_format=format_for(None),
            grammars=Grammars(unreadable),
        )
        kept = self._kept(plan, engine, _NOTHING)
        return House(plan, served, engine, kept, Stamp.of(plan.path), is_broken=True)

    def _engine(
        self, name: str, options: EngineOptions, foretold: ModelInfo | None, *, begins_asleep: bool = False
    ) -> Dispatcher:
        settings = self._settings
        supervisor = supervised(
            settings,
            options,
            self._observer.of_model(name),
            begins_asleep=begins_asleep or foretold is not None,
            foretold=foretold,
            partner=self._cores.join(name) if self._cores is not None else None,
        )
        return Dispatcher(
            supervisor,
            max_queue=settings.max_queue,
            max_held_bytes=settings.stream_buffer_mb * _MIB,
            culprits=self._culprits,
        )

    def _kept(self, plan: ModelPlan, engine: Dispatcher, need: MemoryNeed) -> Kept:
        kept = Kept(plan.name, engine.residency, need, plan.keep_alive_s, plan.is_pinned, plan.memory_bytes)
        engine.on_wanted = lambda: self._keeper.want(kept)
        return kept
