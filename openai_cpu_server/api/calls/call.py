"""What was made of an `Ask` for one model: a `Call`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePath

import msgspec

from openai_cpu_server import __version__
from openai_cpu_server.answers.question import Turn
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.thinking import Thinking
from openai_cpu_server.http.context import Sender
from openai_cpu_server.models.registry import Chosen
from openai_cpu_server.prompt.reasoning.formats import ReasoningFormat
from openai_cpu_server.prompt.reasoning.reader import SilentReader, ThinkingReader
from openai_cpu_server.prompt.reasoning.stage import Stage
from openai_cpu_server.prompt.tool_formats import OutputReader, TextReader, ToolFormat
from openai_cpu_server.prompt.tool_formats.harmony import HarmonyReader


class Asking(msgspec.Struct, frozen=True):
    """What beside the ask decides what a call means."""

    chosen: Chosen
    info: ModelInfo
    sender: Sender
    options: ApiOptions


class Prompt(msgspec.Struct, frozen=True):
    """Tokens to compute, and their text where the client wants it echoed."""

    tokens: tuple[int, ...]
    echo: str | None = None
    turn: Turn | None = None
    """The last user turn, where answers to similar ones are kept."""


class Reuse(msgspec.Struct, frozen=True):
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

    def reader(self) -> OutputReader:
        """A reader for one output."""
        return self.form.reader(self.functions, at_start=self.at_start)


class CallThinking(msgspec.Struct, frozen=True):
    """How thoughts stand in the output, and whether they are shown."""

    form: ReasoningFormat
    stage: Stage
    """Where the output begins."""
    is_hidden: bool = False

    def reader(self, answer: OutputReader) -> OutputReader:
        """A reader for one output, in front of the one for its answer. That of calls in channels reads
        thoughts itself."""
        reader: OutputReader = answer
        if not self.form.has_channels:
            reader = ThinkingReader(self.form, self.stage, answer)
        elif isinstance(answer, TextReader):
            reader = HarmonyReader()
        if self.form.has_channels and self.stage is Stage.WITHIN:
            reader.feed(self.form.begin)  # the prompt has it already
        return SilentReader(reader) if self.is_hidden else reader

    @property
    def marks(self) -> Thinking | None:
        """They tell which tokens are thoughts; None: none are."""
        if self.stage is Stage.BEHIND:
            return None
        return Thinking(begin="" if self.stage is Stage.WITHIN else self.form.begin, end=self.form.end)


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
    reuse: Reuse | None = None
    """None: the client wants an answer of its own, and nobody else is to get it."""
    is_json: bool = False
    """The text is to be shown as JSON too, by families that do so."""
    headers: Mapping[str, str] = {}
    """The response says there what was ignored, or cannot be enforced."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def reader(self) -> OutputReader:
        """A reader for one of its outputs."""
        answer = TextReader() if self.tool_calls is None else self.tool_calls.reader()
        return answer if self.thinking is None else self.thinking.reader(answer)

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of the request at this index."""
        return self.prompts[index // self.best_of]


def fingerprint(info: ModelInfo, adapter_key: str | None = None) -> str:
    """Equal as long as this version serves this file, with this version of an adapter."""
    facts = f"{PurePath(info.path).name}|{info.file_bytes}|{info.description}"
    if adapter_key is not None:
        facts += f"|{adapter_key}"
    return f"fp_{__version__}_{hashlib.sha256(facts.encode()).hexdigest()[:10]}"
