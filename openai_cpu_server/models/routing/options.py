"""Options of routers and their validation before the server starts. Pure."""

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
    """Tokens of the texts alone, by the tokenizer of the default route."""
    max_tokens_over: int | None = None
    """Requested output tokens; 0 if the request sets no limit."""
    tools: bool | None = None
    """True if the request must offer tools, False if it must not."""
    schema: bool | None = None
    """True if the answer must have a form (JSON, schema, grammar, choices), False if it must not."""


class Rules(msgspec.Struct, frozen=True):
    """Rules, of which the first one that holds decides."""

    rules: tuple[Rule, ...]


class Classifier(msgspec.Struct, frozen=True, kw_only=True):
    """A model that names the route, constrained to the names."""

    model: str
    prompt: str
    """With `{request}` for the last user message."""
    timeout_s: float


class Examples(msgspec.Struct, frozen=True, kw_only=True):
    """The route whose example is most similar to the last user message."""

    model: str
    texts: tuple[tuple[str, str], ...]
    """(route, example)."""
    least_similarity: float
    timeout_s: float


class WhenStreaming(enum.Enum):
    HOLD = "hold"
    """The small model's answer is held back until it is accepted."""
    LARGE = "large"


class Cascade(msgspec.Struct, frozen=True, kw_only=True):
    """A small route answers, and a large one if that answer is not good enough."""

    small: str
    large: str
    mean_logprob: float
    """Least mean log-probability of a good answer."""
    when_streaming: WhenStreaming


class Stickiness(enum.Enum):
    """Subject that keeps its drawn route."""

    USER = "user"
    """User named in the body, else as `KEY`."""
    KEY = "key"
    """Holder of the API key, or the address on a server without keys."""
    NEVER = "none"


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    weights: tuple[tuple[str, float], ...]
    """(route, weight), not all 0."""
    sticky: Stickiness


RoutingPolicy = Union[Rules, Classifier, Examples, Cascade, Shares]


class RouterOptions(msgspec.Struct, frozen=True, kw_only=True):
    names: tuple[str, ...]
    """The router's own name, then its aliases."""
    routes: dict[str, str]
    """Name of a model or of another router, by route."""
    otherwise: str
    """Route if nothing else decides, or the deciding model is not available."""
    way: RoutingPolicy

    @property
    def name(self) -> str:
        return self.names[0]


Kinds = Mapping[str, "ModelKind | None"]
"""By name; None if its file cannot be read."""


def problem(routers: Sequence[RouterOptions], kinds: Kinds) -> str | None:
    """Return the first error in one line, or None."""
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
