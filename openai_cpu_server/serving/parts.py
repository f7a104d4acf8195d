"""What a served model is made of beside its engine: its file, vocabulary, template, and engine options."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import file_type_name
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_options import ModelOptions
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.models.thinking import ModelThinking
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning.formats import REASONING_FORMATS
from openai_cpu_server.prompt.reasoning.template import template_reasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, ToolFormat, format_for
from openai_cpu_server.serving.engine_options import cache_bytes, engine_options, read_text
from openai_cpu_server.serving.file_content import FileContent
from openai_cpu_server.serving.foresight import Share
from openai_cpu_server.serving.plans import ModelPlan
from openai_cpu_server.settings import Settings
from openai_cpu_server.structured import Whitespace

logger = logging.getLogger(__name__)


class ModelParts(NamedTuple):
    """All that can be known of a model without an engine."""

    plan: ModelPlan
    header: GgufHeader
    kind: ModelKind
    vocabulary: Vocabulary
    template: ChatTemplate | None
    options: EngineOptions

    @classmethod
    def open(cls, settings: Settings, plan: ModelPlan, share: Share | None) -> ModelParts:
        """`share`: None for a model that has the machine for itself. Raises StartupError."""
        header = GgufHeader(plan.path)
        kind = model_kind(header)
        if plan.adapters and kind is not ModelKind.GENERATES:
            raise StartupError(f"{plan.name} generates no text, and takes no adapters")
        vocabulary = Vocabulary.open(plan.path)
        try:
            options = engine_options(settings, plan, vocabulary, cache_bytes=cache_bytes(plan, share))
            template = _template(plan, vocabulary, kind)
        except BaseException:
            vocabulary.close()
            raise
        return cls(plan, header, kind, vocabulary, template, options)

    def served(self, engine: Engine, may_retry: Callable[[], bool] = lambda: False) -> ServedModel:
        """The vocabulary is closed with it."""
        options = self.plan.options
        served = ServedModel(
            names=self.plan.names,
            created=int(time.time()),
            engine=engine,
            tokenizer=self.vocabulary,
            template=self.template,
            tool_format=_tool_format(options.tool_format, self.template),
            check_grammar=GrammarCheck,
            whitespace=Whitespace(options.json_whitespace),
            kind=self.kind,
            may_retry=may_retry,
            quantisation=file_type_name(self.header.get_int("general.file_type") or 0),
            thinking=_thinking(options, self.template),
            content_digest=FileContent(model_files(self.header)).digest,
        )
        weakref.finalize(served, self.vocabulary.close)  # whoever has chosen it may still tokenise
        return served


def _template(plan: ModelPlan, vocabulary: Vocabulary, kind: ModelKind) -> ChatTemplate | None:
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
