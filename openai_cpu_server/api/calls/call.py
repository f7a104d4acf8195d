"""What an API call asks for: from whom and to which model it came, and what was made of its body."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openai_cpu_server.api.calls.sender import Sender
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.parse import Ignored
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.models.registry import Chosen
from openai_cpu_server.prompt.tool_formats import ToolFormat, ToolReader


class Asking(msgspec.Struct, frozen=True):
    """What beside the body decides what a call means."""

    chosen: Chosen
    info: ModelInfo
    sender: Sender
    options: ApiOptions
    ignored: Ignored = Ignored()


class Prompt(msgspec.Struct, frozen=True):
    """Tokens to compute, and their text where the client wants it echoed."""

    tokens: tuple[int, ...]
    echo: str | None = None


class ToolCallStyle(msgspec.Struct, frozen=True):
    """How tool calls stand in the output, and how they are shown."""

    form: ToolFormat
    reason: str
    """The finish reason of an output with tool calls."""
    is_legacy: bool = False
    """They are shown as the one `function_call`, not as `tool_calls`."""
    at_start: bool = False
    """They are the very beginning of the output, or it has none: content may hold their marker."""

    def reader(self) -> ToolReader:
        """A reader for one output."""
        return self.form.reader(at_start=self.at_start)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` holds `best_of` sequences for each prompt, prompt by prompt; `n` of them are shown."""

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
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    tool_calls: ToolCallStyle | None = None
    """None: the output is text, whatever it looks like."""
    headers: Mapping[str, str] = {}
    """The response says there what was ignored, or cannot be enforced."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt.tokens) for prompt in self.prompts)

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of the request at this index."""
        return self.prompts[index // self.best_of]
