"""Options of routers, validated before the start. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Union

import msgspec

from openai_cpu_server.contract.model_info import ModelKind


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Route with conditions, all of which must hold."""

    route: str
    prompt_tokens_over: int | None = None
    """Tokens of texts alone, by the default route's tokenizer."""
    max_tokens_over: int | None = None
    """Requested output tokens; 0 without a limit."""
    tools: bool | None = None
    """False: the request must not offer tools."""
    schema: bool | None = None
    """False: the answer must have no form (JSON, schema, grammar, choices)."""


class Rules(msgspec.Struct, frozen=True):
    """The first that holds decides."""

    rules: tuple[Rule, ...]


class Classifier(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    prompt: str
    """`{request}` stands for the last user message."""
    timeout_s: float


class Examples(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar example to the last user message decides."""

    model: str
    texts: tuple[tuple[str, str], ...]
    """(route, example)."""
    least_similarity: float
    timeout_s: float


class WhenStreaming(enum.Enum):
    HOLD = "hold"
    """Send nothing of the small model's answer until it is accepted."""
    LARGE = "large"


class Cascade(msgspec.Struct, frozen=True, kw_only=True):
    """A large route answers if the small one's answer is not good enough."""

    small: str
    large: str
    mean_logprob: float
    """Least mean log-probability of a good answer."""
    when_streaming: WhenStreaming


class Stickiness(enum.Enum):
    USER = "user"
    """User of the body, else as `KEY`."""
    KEY = "key"
    """API key, or the address on a server without keys."""
    NEVER = "none"


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    weights: tuple[tuple[str, float], ...]
    """(route, weight), not all 0."""
    sticky: Stickiness


RoutingPolicy = Union[Rules, Classifier, Examples, Cascade, Shares]


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]
    """Own name, then aliases."""
    routes: dict[str, str]
    """Models or other routers, by route."""
    otherwise: str
    """Fallback if nothing decides."""
    way: RoutingPolicy

    @property
    def name(self) -> str:
        return self.names[0]


Kinds = Mapping[str, "ModelKind | None"]
"""Kinds by name, or None for unreadable files."""


def problem(routers: Sequence[RouterOptions], kinds: Kinds) -> str | None:
    """Return the first error on one line."""
    by_name = {name: router for router in routers for name in router.names}
    return next((error for router in routers for error in _problems(router, by_name, kinds)), None)


def _problems(router: RouterOptions, by_name: Mapping[str, RouterOptions], kinds: Kinds) -> Iterator[str]:
    here = f"[models.{router.name}] router"
    for route, target in router.routes.items():
        if target in by_name:
            if isinstance(router.way, Cascade):
                yield f"{here}: {route} = {target!r} is a router, and a cascade needs models"
            continue
        base = target.rpartition(":")[0]  # adapters come and go: it may be one's
        name = base if target not in kinds and base in kinds else target
        yield from _no_plain_model(f"{here}: {route} =", name, ModelKind.GENERATES, kinds)
    if isinstance(router.way, Classifier):
        yield from _no_plain_model(
            f"{here}: classifier.model =", router.way.model, ModelKind.GENERATES, kinds
        )
    if isinstance(router.way, Examples):
        yield from _no_plain_model(f"{here}: examples.model =", router.way.model, ModelKind.EMBEDS, kinds)
    if (loop := _loop(router, by_name, ())) is not None:
        yield f"{here}: {' -> '.join(loop)} is a loop"


def _no_plain_model(where: str, name: str, wanted: ModelKind, kinds: Kinds) -> Iterator[str]:
    if name not in kinds:
        yield f"{where} {name!r}: unknown model; the models are {', '.join(kinds)}"
    elif kinds[name] not in (wanted, None):
        verb = {ModelKind.GENERATES: "generates text", ModelKind.EMBEDS: "embeds"}[wanted]
        found = kinds[name]
        yield f"{where} {name!r} {found.value if found else ''}: it must be a model that {verb}"


def _loop(
    router: RouterOptions, by_name: Mapping[str, RouterOptions], before: tuple[str, ...]
) -> tuple[str, ...] | None:
    if router.name in before:
        return (*before[before.index(router.name) :], router.name)
    following = [by_name[target] for target in router.routes.values() if target in by_name]
    loops = (_loop(other, by_name, (*before, router.name)) for other in following)
    return next((loop for loop in loops if loop is not None), None)
