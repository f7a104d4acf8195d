"""What a served model is made of beside its engine: its file, vocabulary, template, and engine options."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import file_type_name
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.model_options import ModelOptions
from openai_cpu_server.models.grammars import Grammars
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.models.thinking import ModelThinking
from openai_cpu_server.prompt.reasoning.template import TemplateReasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.reader.messages import ModelSource
from openai_cpu_server.reader.model import ReadGrammars, ReadModel
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.serving.engine_options import cache_bytes, engine_options, read_text
from openai_cpu_server.serving.file_content import FileContent
from openai_cpu_server.serving.foresight import Share
from openai_cpu_server.serving.plans import ModelPlan
from openai_cpu_server.settings import Settings

logger = logging.getLogger(__name__)


class ModelParts(NamedTuple):
    """All that can be known of a model without an engine."""

    plan: ModelPlan
    header: GgufHeader
    kind: ModelKind
    read: ReadModel
    options: EngineOptions
    grammars: Grammars

    @classmethod
    def open(
        cls, settings: Settings, plan: ModelPlan, share: Share | None, readers: ReaderPool
    ) -> ModelParts:
        """`share`: None for a model that has the machine for itself. Raises StartupError."""
        header = GgufHeader(plan.path)
        kind = model_kind(header)
        if plan.adapters and kind is not ModelKind.GENERATES:
            raise StartupError(f"{plan.name} generates no text, and takes no adapters")
        read = ReadModel(readers, _source(plan, kind))
        try:
            options = engine_options(
                settings, plan, read.tokenizer, readers, cache_bytes=cache_bytes(plan, share)
            )
        except BaseException:
            read.close()
            raise
        if kind is ModelKind.GENERATES and not read.facts.has_template:
            logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        is_flexible = plan.options.json_whitespace == "flexible"
        grammars = Grammars(ReadGrammars(readers), is_flexible=is_flexible)
        return cls(plan, header, kind, read, options, grammars)

    def served(self, engine: Engine, may_retry: Callable[[], bool] = lambda: False) -> ServedModel:
        """The readers forget the model with it."""
        served = ServedModel(
            names=self.plan.names,
            created=int(time.time()),
            engine=engine,
            tokenizer=self.read.tokenizer,
            prompts=self.read.prompts,
            rerank=self.read.rerank,
            tool_format=TOOL_FORMATS[self.read.facts.tool_format],
            grammars=self.grammars,
            kind=self.kind,
            may_retry=may_retry,
            quantisation=file_type_name(self.header.get_int("general.file_type") or 0),
            thinking=_thinking(self.plan.options, self.read.facts.reasoning),
            content_digest=FileContent(model_files(self.header)).digest,
        )
        weakref.finalize(served, self.read.close)  # whoever has chosen it may still tokenise
        return served


def reader_pool(
    settings: Settings, plans: Iterable[ModelPlan], *, children: Sequence[ReaderChild] = ()
) -> ReaderPool:
    """The readers of a server with these models."""
    if settings.sandbox == "off":
        return ReaderPool(children=children)
    paths = [path for plan in plans for path in (plan.path, plan.path.resolve())]
    return ReaderPool([*(path.parent for path in paths), settings.profile_dir], children=children)


def _source(plan: ModelPlan, kind: ModelKind) -> ModelSource:
    """Raises StartupError for a template that cannot be read."""
    options = plan.options
    return ModelSource(
        path=str(plan.path),
        generates=kind is ModelKind.GENERATES,
        chat_template=read_text(options.chat_template) if options.chat_template else None,
        tool_format=options.tool_format,
        reasoning_format=options.reasoning_format,
    )


def _thinking(options: ModelOptions, reasoning: TemplateReasoning | None) -> ModelThinking | None:
    """None: the model does not think, or what it writes is to be shown as it is."""
    if reasoning is None:
        return None
    is_on = {"auto": None, "on": True, "off": False}[options.reasoning]
    return ModelThinking(reasoning, is_on=is_on, budget=options.reasoning_budget)
