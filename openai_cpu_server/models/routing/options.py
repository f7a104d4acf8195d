"""What a router was told: its routes, and by what it chooses between them."""

from __future__ import annotations

import enum
from typing import Union

import msgspec


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """It holds for a request for which all of its conditions hold."""

    route: str
    prompt_tokens_over: int | None = None
    """Tokens of the texts alone, by the tokenizer of the route that is taken otherwise."""
    max_tokens_over: int | None = None
    """Output that the request asks for. One that names no number asks for none."""
    tools: bool | None = None
    """Whether it offers tools."""
    schema: bool | None = None
    """Whether its answer must have a form: JSON, a schema, a grammar, choices."""


class Rules(msgspec.Struct, frozen=True):
    """The first that holds decides."""

    rules: tuple[Rule, ...]


class Classifier(msgspec.Struct, frozen=True, kw_only=True):
    """A model names the route, and can write nothing else."""

    model: str
    prompt: str
    """With `{request}` for the last user's text."""
    timeout_s: float


class Examples(msgspec.Struct, frozen=True, kw_only=True):
    """The route of the example that is most similar to the last user's text."""

    model: str
    """It embeds."""
    texts: tuple[tuple[str, str], ...]
    """(route, example)."""
    least_similarity: float
    timeout_s: float


class WhenStreaming(enum.Enum):
    HOLD = "hold"
    """The small one's answer is held until it is known to be good enough."""
    LARGE = "large"
    """Streams are the large one's."""


class Cascade(msgspec.Struct, frozen=True, kw_only=True):
    """One route answers; where its answer is not good enough, another does."""

    small: str
    large: str
    mean_logprob: float
    """Of an answer's tokens; below this it is not good enough."""
    when_streaming: WhenStreaming


class Stickiness(enum.Enum):
    """Who stays with the route that was drawn once."""

    USER = "user"
    """Whoever a body names; else as `KEY`."""
    KEY = "key"
    """The holder of an API key; without keys an address."""
    NOBODY = "none"


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    weights: tuple[tuple[str, float], ...]
    """(route, weight), not all 0."""
    sticky: Stickiness


Way = Union[Rules, Classifier, Examples, Cascade, Shares]


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]
    """The first is its own."""
    routes: dict[str, str]
    """By route: the name of a model, or of another router."""
    otherwise: str
    """The route where nothing else decides, or what decides cannot be had."""
    way: Way

    @property
    def name(self) -> str:
        return self.names[0]
