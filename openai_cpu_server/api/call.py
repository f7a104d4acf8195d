"""One API call, resolved: what to generate, and how to show it."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.prompt.tool_formats import ToolFormat, ToolReader


class Prompt(msgspec.Struct, frozen=True):
    """Tokens to compute, and their text where the client wants it echoed."""

    tokens: tuple[int, ...]
    echo: str | None = None


class CallStyle(msgspec.Struct, frozen=True):
    """How function calls stand in the output, and how they are shown."""

    form: ToolFormat
    reason: str
    """The finish reason of an output with calls."""
    is_legacy: bool = False
    """Shown as the one `function_call`, not as `tool_calls`."""
    at_start: bool = False
    """Calls are the very beginning of the output, or it has none: content may hold their marker."""

    def reader(self) -> ToolReader:
        """Of one output."""
        return self.form.reader(at_start=self.at_start)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` holds `best_of` sequences for each prompt, prompt by prompt; `n` of them are shown."""

    id: str
    model: str
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
    """What the client gives it, from its arrival to its end."""
    max_output_tokens: int = 0
    """Of all its sequences, as far as the client has named a number."""
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    calls: CallStyle | None = None
    """None: the output is text, whatever it looks like."""

    def prompt_of(self, index: int) -> Prompt:
        """Of the request at this index."""
        return self.prompts[index // self.best_of]
