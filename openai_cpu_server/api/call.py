"""One API call, resolved: what to generate, and how to show it."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.request import GenerationRequest, Priority


class Prompt(msgspec.Struct, frozen=True):
    """Tokens to compute, and their text where the client wants it echoed."""

    tokens: tuple[int, ...]
    echo: str | None = None


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
    service_tier: str | None = None
    metadata: dict[str, str] | None = None

    def prompt_of(self, index: int) -> Prompt:
        """Of the request at this index."""
        return self.prompts[index // self.best_of]
