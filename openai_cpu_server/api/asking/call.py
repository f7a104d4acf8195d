"""What was made of an `Ask` for one model: a `Call`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import PurePath

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.answers.store import LastTurn
from openai_cpu_server.api.asking.ask import AskedDetails
from openai_cpu_server.contract.media import MediaItem, Medium
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import (
    Constraint,
    GenerationRequest,
    OutputMarks,
    OutputPart,
    Priority,
)
from openai_cpu_server.http.context import Sender
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.models.registry import ChosenModel
from openai_cpu_server.prompt.reasoning import ReasoningFormat, ThinkingStage
from openai_cpu_server.prompt.tool_formats import (
    HarmonyReader,
    OutputReader,
    Part,
    TextCallReader,
    TextReader,
    ThinkingText,
    ToolFormat,
)


class ModelContext(msgspec.Struct, frozen=True):
    """What beside the ask decides what a call means."""

    chosen: ChosenModel
    info: ModelInfo
    sender: Sender
    options: ApiOptions


class Prompt(msgspec.Struct, frozen=True):
    """Tokens to compute, and their text where the client wants it echoed."""

    tokens: tuple[int, ...]
    echo: str | None = None
    turn: LastTurn | None = None
    """The last user turn, where answers to similar ones are kept."""
    borders: tuple[int, ...] = ()
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[Medium, ...] = ()
    """These three as a `GenerationRequest` has them."""
    sound_s: float = 0.0
    """So long its sounds take together."""

    def num_rows(self, kind: type[MediaItem]) -> int:
        """Tokens that are rows of media items of this kind."""
        of_kind = (one for one in self.media if isinstance(self.media_items[one.item], kind))
        return sum(medium.rows.num_rows for medium in of_kind)


class AnswerReuse(msgspec.Struct, frozen=True):
    """What decides, beside its requests, whether an earlier answer is one to this call."""

    is_repeatable: bool
    """The client has given a seed, or none is needed."""
    asked_tokens: int
    """The output tokens that it has asked for, for all sequences; 0: no number."""


class ToolCallStyle(msgspec.Struct, frozen=True):
    """How tool calls stand in the output, and how they are shown."""

    form: ToolFormat
    reason: str
    """The finish reason of an output with tool calls."""
    is_legacy: bool = False
    """They are shown as the one `function_call`, not as `tool_calls`."""
    at_start: bool = False
    """Tool calls are the very beginning of the output, or there are none: content may hold their marker."""

    functions: Mapping[str, frozenset[str]] = {}
    """For each function that may be called: its parameters that stand in the output as raw text."""
    custom: frozenset[str] = frozenset()
    """The names of custom tools, whose calls are shown with a text."""

    def reader(self) -> OutputReader:
        return self.form.reader(self.functions, at_start=self.at_start)


class CallThinking(msgspec.Struct, frozen=True):
    """How thoughts stand in the output, and whether they are shown."""

    form: ReasoningFormat
    stage: ThinkingStage
    """Where the output begins."""
    is_hidden: bool = False
    ending: Constraint | None = None
    """What ends the thoughts where somebody asks for that; None: nothing can."""

    def channels(self, answer: OutputReader) -> OutputReader:
        """A reader for an output in channels; one for calls in channels reads thoughts itself."""
        reader: OutputReader = HarmonyReader() if isinstance(answer, TextReader) else answer
        if self.stage is ThinkingStage.WITHIN:
            reader.feed(self.form.begin)  # the prompt has it already
        return reader

    @property
    def marks(self) -> OutputMarks:
        """They tell the engine which tokens are thoughts."""
        form = self.form
        return OutputMarks(
            begin=form.begin if self.stage is ThinkingStage.BEFORE else "",
            end=form.end if self.stage is not ThinkingStage.BEHIND else "",
            answer_begin=form.answer_begin,
            answer_end=form.answer_end,
            has_channels=form.has_channels,
        )


class PartsReader:
    """Makes parts of one output's events: the engine has told thoughts from the answer, and the tool format's
    reader finds the calls in that."""

    def __init__(
        self, answer: OutputReader, *, custom: Collection[str] = (), hides_thoughts: bool = False
    ) -> None:
        """`custom`: the names of custom tools."""
        self._answer = answer
        self._texts = TextCallReader(custom)
        self._hides_thoughts = hides_thoughts

    @property
    def is_cut(self) -> bool:
        """Whether the output, if it ended here, would end within a call."""
        return self._answer.is_cut

    @property
    def has_calls(self) -> bool:
        return self._answer.has_calls

    def read(self, event: TokenEvent) -> list[Part]:
        thoughts, text = ("", event.text) if event.part is OutputPart.ANSWER else (event.text, "")
        return self.read_texts(thoughts, text, has_ended=event.finish is not None)

    def read_texts(self, thoughts: str, answer: str, *, has_ended: bool = True) -> list[Part]:
        """Thoughts, and what of the answer stands behind them."""
        parts: list[Part] = [ThinkingText(thoughts)] if thoughts else []
        parts += self._answer.feed(answer) if answer else ()
        parts += self._answer.finish() if has_ended else ()
        parts = self._texts.read(parts)
        if self._hides_thoughts:
            return [part for part in parts if not isinstance(part, ThinkingText)]
        return parts


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An API call as it was resolved. `requests` holds `best_of` sequences for each prompt, prompt by prompt;
    the client is shown `n` of them."""

    id: str
    model: str
    """The name that the client used for it."""
    created: int
    """Unix time."""
    fingerprint: str
    prompts: tuple[Prompt, ...]
    requests: tuple[GenerationRequest, ...]
    n: int
    best_of: int
    priority: Priority
    stream: bool = False
    include_usage: bool = False
    shown_logprobs: int | None = None
    """Alternatives to show beside each token; None: no log-probabilities (`best_of` may still need them)."""
    timeout_s: float | None = None
    """The client's limit, from the call's arrival to its end."""
    max_output_tokens: int = 0
    """All of its sequences together may have so many, as far as the client has named a number."""
    context_ends_it: bool = False
    """The context leaves fewer output tokens than the client and the server allow."""
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    tool_calls: ToolCallStyle | None = None
    """None: the output is text, whatever it looks like."""
    thinking: CallThinking | None = None
    """None: all of the output is the answer."""
    reuse: AnswerReuse | None = None
    """None: the client wants an answer of its own, and nobody else is to get it."""
    details: AskedDetails = AskedDetails()
    headers: Mapping[str, str] = {}
    """The response says there what was ignored, or cannot be enforced."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def reader(self) -> PartsReader:
        """A reader for one of its outputs."""
        thinking = self.thinking
        answer = TextReader() if self.tool_calls is None else self.tool_calls.reader()
        if thinking is not None and thinking.form.has_channels:
            answer = thinking.channels(answer)
        custom = () if self.tool_calls is None else self.tool_calls.custom
        is_hidden = thinking is not None and thinking.is_hidden
        return PartsReader(answer, custom=custom, hides_thoughts=is_hidden)

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self.best_of]


def fingerprint(info: ModelInfo, adapter_key: str | None = None) -> str:
    """Equal as long as this version serves this file, with this version of an adapter."""
    facts = f"{PurePath(info.path).name}|{info.file_bytes}|{info.description}"
    if adapter_key is not None:
        facts += f"|{adapter_key}"
    return f"fp_{__version__}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"
