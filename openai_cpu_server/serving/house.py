"""One served model, made of its plan: vocabulary, template, engine."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.dispatch.dispatcher import Dispatcher
from openai_cpu_server.dispatch.hang_detector import HangLimits
from openai_cpu_server.dispatch.observer import EngineObserver
from openai_cpu_server.dispatch.shared_cores import SharedCores
from openai_cpu_server.dispatch.supervisor import Supervisor
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import file_type_name
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_options import ModelOptions
from openai_cpu_server.models.broken import NoTokenizer
from openai_cpu_server.models.keeper import Kept, ModelKeeper
from openai_cpu_server.models.memory_budget import MemoryNeed
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.models.thinking import ModelThinking
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning.formats import REASONING_FORMATS
from openai_cpu_server.prompt.reasoning.template import template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, ToolFormat, format_for
from openai_cpu_server.serving.engine_options import cache_bytes, engine_options, read_text
from openai_cpu_server.serving.foresight import Share, foresee
from openai_cpu_server.serving.plans import ModelPlan
from openai_cpu_server.settings import Settings
from openai_cpu_server.structured import Whitespace

logger = logging.getLogger(__name__)

_ENGINE_COMMAND = (
    sys.executable,
    *("-m", "openai_cpu_server.kernels.front"),
    "openai_cpu_server.engine.process",
)
_MIB = 1024 * 1024
_NOTHING = MemoryNeed(weights=0, cells=0, buffers=0)


class Stamp(NamedTuple):
    """It tells two states of a file apart."""

    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Stamp | None:
        """None: there is no such file."""
        try:
            found = path.stat()
        except OSError:
            return None
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


class FileContent:
    """What is in the files of a model, as they were when this was made."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stamps = {path: Stamp.of(path) for path in files}

    def digest(self) -> str | None:
        """SHA-256 over all of them. None: they have changed, or cannot be read."""
        digest = hashlib.sha256()
        try:
            for path in self._stamps:
                _add_file(digest, path)
        except OSError:
            return None
        is_same = all(Stamp.of(path) == stamp for path, stamp in self._stamps.items())
        return digest.hexdigest() if is_same else None


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    with path.open("rb") as file:
        while chunk := file.read(_MIB):
            digest.update(chunk)


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
        self, settings: Settings, observer: EnginesObserver, keeper: ModelKeeper, *, num_models: int
    ) -> None:
        self._settings = settings
        self._observer = observer
        self._keeper = keeper
        self._num_models = num_models
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
            house.engine.fail(why)
        return house

    def _house(self, plan: ModelPlan, share: Share | None, *, begins_asleep: bool = False) -> House:
        """Raises StartupError."""
        stamp, header = Stamp.of(plan.path), GgufHeader(plan.path)
        kind = model_kind(header)
        if plan.adapters and kind is not ModelKind.GENERATES:
            raise StartupError(f"{plan.name} generates no text, and takes no adapters")
        vocabulary = Vocabulary.open(plan.path)
        try:
            options = engine_options(self._settings, plan, vocabulary, cache_bytes=cache_bytes(plan, share))
            foreseen = foresee(options, vocabulary, share)
            template = self._template(plan, vocabulary, kind)
        except BaseException:
            vocabulary.close()
            raise
        is_alone = share is None
        told = (options, None) if is_alone else (foreseen.options, foreseen.info)
        engine = self._engine(plan.name, *told, begins_asleep=begins_asleep)
        kept = self._kept(plan, engine, foreseen.need)
        served = ServedModel(
            names=plan.names,
            created=int(time.time()),
            engine=engine,
            tokenizer=vocabulary,
            template=template,
            tool_format=_tool_format(plan.options.tool_format, template),
            check_grammar=GrammarCheck,
            whitespace=Whitespace(plan.options.json_whitespace),
            kind=kind,
            may_retry=lambda: self._keeper.may_retry(kept),
            quantisation=file_type_name(header.get_int("general.file_type") or 0),
            thinking=_thinking(plan.options, template),
            content_digest=FileContent(model_files(header)).digest,
        )
        weakref.finalize(served, vocabulary.close)  # whoever has chosen it may still tokenise
        return House(plan, served, engine, kept, stamp, is_broken=False)

    def _broken(self, plan: ModelPlan, reason: str) -> House:
        logger.error("%s is not served: %s", plan.name, reason)
        engine = self._engine(plan.name, EngineOptions(model_path=str(plan.path)), None, begins_asleep=True)
        engine.fail(reason)
        served = ServedModel(
            names=plan.names,
            created=int(time.time()),
            engine=engine,
            tokenizer=NoTokenizer(reason),
            template=None,
            tool_format=format_for(None),
            check_grammar=GrammarCheck,
        )
        kept = self._kept(plan, engine, _NOTHING)
        return House(plan, served, engine, kept, Stamp.of(plan.path), is_broken=True)

    def _engine(
        self, name: str, options: EngineOptions, foretold: ModelInfo | None, *, begins_asleep: bool = False
    ) -> Dispatcher:
        settings = self._settings
        supervisor = Supervisor(
            (*_ENGINE_COMMAND, settings.log_format),
            options,
            observer=self._observer.of_model(name),
            hang_limits=HangLimits(
                step_s=settings.hang_seconds or None, load_s=settings.load_hang_seconds or None
            ),
            max_crashes_a_minute=settings.max_crashes_per_minute,
            begins_asleep=begins_asleep or foretold is not None,
            foretold=foretold,
            partner=self._cores.join(name) if self._cores is not None else None,
        )
        return Dispatcher(
            supervisor, max_queue=settings.max_queue, max_held_bytes=settings.stream_buffer_mb * _MIB
        )

    def _kept(self, plan: ModelPlan, engine: Dispatcher, need: MemoryNeed) -> Kept:
        kept = Kept(plan.name, engine, need, plan.keep_alive_s, plan.is_pinned, plan.memory_bytes)
        engine.on_wanted = lambda: self._keeper.want(kept)
        return kept

    def _template(self, plan: ModelPlan, vocabulary: Vocabulary, kind: ModelKind) -> ChatTemplate | None:
        """The user's template, else the model's; None for a model that has none."""
        if kind is not ModelKind.GENERATES:
            return None
        path = plan.options.chat_template
        source = read_text(path) if path else vocabulary.chat_template
        if source is None:
            logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
            return None
        return ChatTemplate(source, bos_text=vocabulary.bos_text, eos_text=vocabulary.eos_text)


def _thinking(options: ModelOptions, template: ChatTemplate | None) -> ModelThinking | None:
    """None: the model does not think, or what it writes is to be shown as it is."""
    if template is None or options.reasoning_format == "none":
        return None
    reasoning = template_reasoning(template, REASONING_FORMATS.get(options.reasoning_format))
    if reasoning is None:
        return None
    is_on = {"auto": None, "on": True, "off": False}[options.reasoning]
    return ModelThinking(reasoning, is_on=is_on, budget=options.reasoning_budget)


def _tool_format(name: str, template: ChatTemplate | None) -> ToolFormat:
    """The user's choice, else what suits the template."""
    return format_for(template) if name == "auto" else TOOL_FORMATS[name]
