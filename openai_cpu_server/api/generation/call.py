from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import PurePath

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.answers.store import LastTurn
from openai_cpu_server.api.generation.params import DetailsParam, JsonObject
from openai_cpu_server.contract import request
from openai_cpu_server.contract.media import MediaItem, PlaceholderRange
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.http.context import Caller
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.models.registry import ChosenModel
from openai_cpu_server.prompt import tool_formats
from openai_cpu_server.prompt.reasoning import ReasoningFormat, ThinkingStage


class ResolveContext(msgspec.Struct, frozen=True):
    chosen: ChosenModel
    info: ModelInfo
    caller: Caller
    options: ApiOptions


class Prompt(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]
    echo: str | None = None
    turn: LastTurn | None = None
    """Last user turn, if answers to similar ones are cached."""
    boundaries: tuple[int, ...] = ()
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[PlaceholderRange, ...] = ()
    sound_s: float = 0.0

    def num_rows(self, kind: type[MediaItem]) -> int:
        of_kind = (one for one in self.media if isinstance(self.media_items[one.item], kind))
        return sum(placeholder.rows.num_rows for placeholder in of_kind)


class ToolCallStyle(msgspec.Struct, frozen=True):
    form: tool_formats.ToolFormat
    reason: str
    is_legacy: bool = False
    at_start: bool = False
    """True if calls only begin the output, whose content may contain their marker."""

    functions: Mapping[str, Mapping[str, frozenset[str]]] = {}
    """Parameters written as raw text, by callable function."""
    schemas: Mapping[str, JsonObject] = {}
    custom: frozenset[str] = frozenset()


class CallThinking(msgspec.Struct, frozen=True):
    form: ReasoningFormat
    stage: ThinkingStage
    is_hidden: bool = False
    ending: request.Constraint | None = None
    """Ends the reasoning on request. None if that is impossible."""

    @property
    def marks(self) -> request.OutputMarks:
        form = self.form
        return request.OutputMarks(
            begin=form.begin if self.stage is ThinkingStage.BEFORE else "",
            end=form.end if self.stage is not ThinkingStage.BEHIND else "",
            answer_begin=form.answer_begin,
            answer_alone=form.answer_alone,
            answer_end=form.answer_end,
            has_channels=form.has_channels,
        )


class PartsReader:
    """Parser of one output. The engine separates reasoning from the answer."""

    def __init__(
        self, answer: tool_formats.OutputReader, *, custom: Collection[str] = (), hides_thoughts: bool = False
    ) -> None:
        self._answer = answer
        self._texts = tool_formats.TextCallReader(custom)
        self._hides_thoughts = hides_thoughts

    @property
    def is_cut(self) -> bool:
        return self._answer.is_cut

    @property
    def has_calls(self) -> bool:
        return self._answer.has_calls

    def read(self, event: TokenEvent) -> list[tool_formats.Part]:
        thoughts, text = ("", event.text) if event.part is request.OutputPart.ANSWER else (event.text, "")
        return self.read_texts(thoughts, text, has_ended=event.finish is not None)

    def read_texts(self, thoughts: str, answer: str, *, has_ended: bool = True) -> list[tool_formats.Part]:
        parts: list[tool_formats.Part] = [tool_formats.ThinkingText(thoughts)] if thoughts else []
        parts += self._answer.feed(answer) if answer else ()
        parts += self._answer.finish() if has_ended else ()
        parts = self._texts.read(parts)
        if self._hides_thoughts:
            return [part for part in parts if not isinstance(part, tool_formats.ThinkingText)]
        return parts


class ResolvedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """API call with `best_of` sequences per prompt, of which the client gets `n`."""

    id: str
    model: str
    created: int
    fingerprint: str
    prompts: tuple[Prompt, ...]
    requests: tuple[request.GenerationRequest, ...]
    n: int
    best_of: int
    priority: request.Priority
    stream: bool = False
    include_usage: bool = False
    shown_logprobs: int | None = None
    """Alternatives per token, or None to show no log-probabilities, which `best_of` may still need."""
    timeout_s: float | None = None
    max_output_tokens: int = 0
    """Limit of all sequences together, or 0 if unnamed."""
    default_limit: int | None = None
    """Limit if the client names none, or None."""
    context_ends_it: bool = False
    """True if the context leaves fewer tokens than client and server allow."""
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    grammar_path: str | None = None
    tool_calls: ToolCallStyle | None = None
    thinking: CallThinking | None = None
    is_cached: bool = True
    """False if the client neither wants a cached answer nor shares this one."""
    is_repeatable: bool = False
    details: DetailsParam = DetailsParam()
    headers: Mapping[str, str] = {}

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def reader(self) -> PartsReader:
        style, thinking = self.tool_calls, self.thinking
        answer: tool_formats.OutputReader = tool_formats.TextReader()
        if style is not None:
            answer = style.form.reader(style.functions, at_start=style.at_start, schemas=style.schemas)
        if thinking is not None and thinking.form.has_channels:
            # Readers of calls in channels read reasoning themselves.
            answer = tool_formats.HarmonyReader() if isinstance(answer, tool_formats.TextReader) else answer
            if thinking.stage is ThinkingStage.WITHIN:
                answer.feed(thinking.form.begin)  # the prompt has it already
        custom = () if style is None else style.custom
        is_hidden = thinking is not None and thinking.is_hidden
        return PartsReader(answer, custom=custom, hides_thoughts=is_hidden)

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.best_of]


def fingerprint(info: ModelInfo, adapter_key: str | None = None) -> str:
    facts = f"{PurePath(info.path).name}|{info.file_bytes}|{info.description}"
    if adapter_key is not None:
        facts += f"|{adapter_key}"
    return f"fp_{__version__}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"
