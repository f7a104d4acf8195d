"""A generation request as the engine sees it: tokens in, parameters resolved, nothing optional left open."""

from __future__ import annotations

import enum

import msgspec


class Priority(enum.IntEnum):
    """Order of classes: the smaller value goes first."""

    INTERACTIVE = 0
    BATCH = 1

    @property
    def label(self) -> str:
        """The name that users write: `interactive` or `batch`."""
        return self.name.lower()


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the next token; the defaults leave the model's distribution as it is."""

    seed: int
    """Every draw comes from a generator positioned by (seed, output position)."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    """Divides the logits of the last `repeat_last_n` tokens, prompt included (llama.cpp's)."""
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token in the output so far (OpenAI's)."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that a token is in the output so far (OpenAI's)."""
    logit_bias: dict[int, float] = {}
    ignore_eos: bool = False
    """Never sample a token that ends the generation."""


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must look like."""

    grammar: str
    """GBNF that is known to compile."""
    opening: tuple[int, ...] = ()
    """Tokens that the output begins with, before the grammar's first (the marker of a tool call)."""
    triggers: tuple[str, ...] = ()
    """The output is free until it holds one of these (control tokens by name); the grammar begins behind it.

    (): it begins with the first token.
    """


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate: one choice of one API call."""

    id: str
    tokens: tuple[int, ...]
    """The prompt, at least one token."""
    max_tokens: int
    """Output tokens at most; 0 computes (and scores) the prompt only."""
    sampling: Sampling
    priority: Priority = Priority.INTERACTIVE
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """None: no log-probabilities; else this many alternatives beside each sampled token's own."""
    prompt_logprobs: bool = False
    """Also report the log-probability of every prompt token but the first."""
    client: str = ""
    """Whom to be fair to: an opaque label, equal for requests of the same client."""
    cache_namespace: str = ""
    """Only requests of the same namespace share computed prompts (cache salt, API key)."""
    constraint: Constraint | None = None
    show_control_tokens: bool = False
    """Control tokens, but for those that end the output, are text (`[TOOL_CALLS]`); else they are silent."""
    pin: bool = False
    """Keep the prompt in the prefix cache for good."""

    @property
    def total_tokens(self) -> int:
        """KV cells that the request holds at most."""
        return len(self.tokens) + self.max_tokens
