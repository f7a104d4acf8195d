"""A generation request as the engine sees it: tokens, and parameters without open defaults."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from openai_cpu_server.contract.bounds import (
    COUNT,
    LOGIT_BIAS,
    REPEAT_PENALTY,
    SHARE,
    TEMPERATURE,
    TOP_K,
    TYPICAL_P,
    USAGE_PENALTY,
    Bounds,
    WholeBounds,
)
from openai_cpu_server.contract.thinking import OutputMarks, Thinking


class Priority(enum.IntEnum):
    """The order of classes: the smaller value goes first."""

    INTERACTIVE = 0
    BATCH = 1

    @property
    def label(self) -> str:
        """The name that users write: `interactive` or `batch`."""
        return self.name.lower()


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the next token. The defaults leave the model's distribution as it is."""

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
    scored: tuple[int, ...] = ()
    """Tokens that are told behind the likeliest ones, where log-probabilities are asked for."""
    ignore_eos: bool = False
    """Never sample a token that ends the generation."""


_SAMPLING_BOUNDS: Mapping[str, Bounds | WholeBounds] = {
    "temperature": TEMPERATURE,
    "top_p": SHARE,
    "min_p": SHARE,
    "typical_p": TYPICAL_P,
    "repeat_penalty": REPEAT_PENALTY,
    "repeat_last_n": COUNT,
    "presence_penalty": USAGE_PENALTY,
    "frequency_penalty": USAGE_PENALTY,
}


class Constraint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the output must look like: first there may be thoughts, and behind them is the answer."""

    grammar: str | None = None
    """GBNF that surely compiles; None: the answer is free."""
    opening: tuple[int, ...] = ()
    """Tokens before the grammar with which the answer begins (the marker of a tool call)."""
    triggers: tuple[str, ...] = ()
    """The answer is free until it contains one of these (control tokens by name); then the grammar begins.

    (): the grammar begins with the answer's first token. Thoughts must be certain then, or impossible.
    """
    thinking: Thinking | None = None
    """How the answer's beginning is found that the constraint waits for. Stop strings wait for it, too.
    None: nothing waits."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="generate"):
    """One sequence to generate, which is one choice of one API call."""

    id: str
    tokens: tuple[int, ...]
    """The prompt, which has at least one token."""
    max_tokens: int
    """The most output tokens; 0 computes (and scores) the prompt only."""
    sampling: Sampling
    priority: Priority = Priority.INTERACTIVE
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    """How many alternatives get log-probabilities beside each sampled token;
    None: no log-probabilities at all."""
    prompt_logprobs: bool = False
    """Also report the log-probability of every prompt token but the first."""
    client: str = ""
    """Whom to be fair to: an opaque label, equal for requests of the same client."""
    account: str = ""
    """Who answers for what the engine dies of: an opaque label of a key or an address; "": nobody does."""
    group: str = ""
    """Clients of one group have one turn among all, and take turns for it: those of one address, who may call
    themselves as they like. "": the client is alone."""
    route: str = ""
    """What kind of call it belongs to; outputs of one kind are expected to be alike in length."""
    cache_namespace: str = ""
    """Only requests of the same namespace share computed prompts (cache salt, API key)."""
    adapter: str | None = None
    """The adapter that changes its model; None: the model as it is. It is its name until the engine that
    accepts the request puts its key in place of that.
    """
    constraint: Constraint | None = None
    marks: OutputMarks | None = None
    """How thoughts are told from the answer; None: all of the output is the answer."""
    show_control_tokens: bool = False
    """Whether control tokens (`[TOOL_CALLS]`) are text in the output, except those that end it;
    else they are silent."""
    pin: bool = False
    """Keep the prompt in the prefix cache for good."""

    @property
    def turns(self) -> tuple[str, str]:
        """Whose turn it is, among all and then in the group."""
        return self.group or self.client, self.client

    @property
    def cells_namespace(self) -> str:
        """Only requests of the same have cells that mean the same: those of an adapter are others."""
        return self.cache_namespace if self.adapter is None else f"{self.cache_namespace}+{self.adapter}"

    @property
    def total_tokens(self) -> int:
        """The most KV cells that the request can hold."""
        return len(self.tokens) + self.max_tokens

    def wrong_number(self, *, vocab_size: int) -> str | None:
        """What of it no native code may see; None: nothing. The API lets none of that pass."""
        sampling = self.sampling
        for name, bounds in _SAMPLING_BOUNDS.items():
            if not bounds.hold(getattr(sampling, name)):
                return name
        if sampling.top_k is not None and not TOP_K.hold(sampling.top_k):
            return "top_k"
        if not COUNT.hold(self.max_tokens):
            return "max_tokens"
        if not all(map(LOGIT_BIAS.hold, sampling.logit_bias.values())):
            return "logit_bias"
        for name, tokens in (
            ("tokens", self.tokens),
            ("logit_bias", tuple(sampling.logit_bias)),
            ("scored", sampling.scored),
        ):
            if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
                return name
        return None
