"""What is wrong with routers, before the server starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.models.routing.options import Cascade, Classifier, Examples, RouterOptions

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
