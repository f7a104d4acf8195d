"""Routers that are refused before the server starts."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.models.routing.options import (
    Cascade,
    Classifier,
    Examples,
    RouterOptions,
    Rules,
    Way,
    WhenStreaming,
    problem,
)

KINDS: dict[str, ModelKind | None] = {
    "small": ModelKind.GENERATES,
    "vectors": ModelKind.EMBEDS,
    "scores": ModelKind.RERANKS,
    "broken": None,
}
CASCADE = Cascade(small="a", large="b", mean_logprob=-1, when_streaming=WhenStreaming.HOLD)


def router(name: str, way: Way = Rules(()), **routes: str) -> RouterOptions:  # noqa: B008 (frozen)
    return RouterOptions(names=(name, f"{name}-too"), routes=routes, otherwise=next(iter(routes)), way=way)


def test_models_and_routers_that_end_at_models_are_fine() -> None:
    asks = Classifier(model="small", prompt="{request}", timeout_s=1)
    routers = [
        router("one", a="small", b="two-too", c="small:adapter"),
        router("two", asks, a="small", b="broken"),
        router("three", CASCADE, a="small", b="broken"),
        router(
            "four", Examples(model="vectors", texts=(), least_similarity=0, timeout_s=1), a="one", b="two"
        ),
    ]
    assert problem(routers, KINDS) is None


@pytest.mark.parametrize(
    ("routers", "said"),
    [
        ([router("r", a="none")], "a = 'none': there is no such model; there is small, vectors"),
        ([router("r", a="vectors")], "a = 'vectors' embeds: it must be a model that generates text"),
        ([router("r", a="none:adapter")], "a = 'none:adapter': there is no such model"),
        ([router("r", a="scores")], "a = 'scores' reranks: it must be a model that generates text"),
        ([router("r", a="r")], "[models.r] router: r -> r is a loop"),
        ([router("r", a="s-too"), router("s", a="small", b="r-too")], "r -> s -> r is a loop"),
        ([router("q", a="r"), router("r", a="r")], "r -> r is a loop"),
        ([router("r", CASCADE, a="small", b="s"), router("s", a="small")], "a cascade needs models"),
        ([router("r", Classifier(model="vectors", prompt="", timeout_s=1), a="small")], "classifier.model ="),
        (
            [router("r", Examples(model="small", texts=(), least_similarity=0, timeout_s=1), a="small")],
            "examples.model = 'small' generates: it must be a model that embeds",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(routers: list[RouterOptions], said: str) -> None:
    found = problem(routers, KINDS)
    assert found is not None
    assert said in found
    assert "\n" not in found
