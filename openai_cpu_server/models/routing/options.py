"""How routers are told to choose, and what is wrong with that, before the server starts. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Union

import msgspec

from openai_cpu_server.contract.model_info import ModelKind


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
    """Below this mean of its tokens an answer is not good enough."""
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


Kinds = Mapping[str, "ModelKind | None"]
"""By the name of a model; None: its file cannot be read, so nobody knows."""


def problem(routers: Sequence[RouterOptions], kinds: Kinds) -> str | None:
    """The first thing that is wrong, in one line; None: nothing."""
    by_name = {name: router for router in routers for name in router.names}
    return next((said for router in routers for said in _problems(router, by_name, kinds)), None)


def _problems(router: RouterOptions, by_name: Mapping[str, RouterOptions], kinds: Kinds) -> Iterator[str]:
    here = f"[models.{router.name}] router"
    for route, target in router.routes.items():
        if target in by_name:
            if isinstance(router.way, Cascade):
                yield f"{here}: {route} = {target!r} is a router, and a cascade needs models"
            continue
        yield from _wrong_model(f"{here}: {route} =", target, ModelKind.GENERATES, kinds)
    if isinstance(router.way, Classifier):
        yield from _no_plain_model(
            f"{here}: classifier.model =", router.way.model, ModelKind.GENERATES, kinds
        )
    if isinstance(router.way, Examples):
        yield from _no_plain_model(f"{here}: examples.model =", router.way.model, ModelKind.EMBEDS, kinds)
    if (loop := _loop(router, by_name, ())) is not None:
        yield f"{here}: {' -> '.join(loop)} is a loop"


def _wrong_model(where: str, name: str, wanted: ModelKind, kinds: Kinds) -> Iterator[str]:
    base = name if name in kinds else name.rpartition(":")[0]  # adapters come and go: it may be one's name
    yield from _no_plain_model(where, name if base not in kinds else base, wanted, kinds)


def _no_plain_model(where: str, name: str, wanted: ModelKind, kinds: Kinds) -> Iterator[str]:
    """A router asks models themselves, without adapters."""
    if name not in kinds:
        yield f"{where} {name!r}: there is no such model; there is {', '.join(kinds)}"
    elif kinds[name] not in (wanted, None):
        verb = {ModelKind.GENERATES: "generates text", ModelKind.EMBEDS: "embeds"}[wanted]
        found = kinds[name]
        yield f"{where} {name!r} {found.value if found else ''}: it must be a model that {verb}"


def _loop(
    router: RouterOptions, by_name: Mapping[str, RouterOptions], before: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The names on the way from this router back to it."""
    if router.name in before:
        return (*before[before.index(router.name) :], router.name)
    following = [by_name[target] for target in router.routes.values() if target in by_name]
    loops = (_loop(other, by_name, (*before, router.name)) for other in following)
    return next((loop for loop in loops if loop is not None), None)
