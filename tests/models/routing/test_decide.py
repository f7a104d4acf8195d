"""Decisions of routers without a model, and routers that are refused."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.models.routing.decide import (
    JudgedAnswer,
    RouteReason,
    RouterInput,
    by_rules,
    by_share,
    nearest_example,
    sticky_draw,
    verdict,
)
from openai_cpu_server.models.routing.options import (
    Cascade,
    Classifier,
    Examples,
    RouterOptions,
    RoutingPolicy,
    Rule,
    Rules,
    Shares,
    Stickiness,
    WhenStreaming,
    problem,
)

INPUT = RouterInput(
    texts=("hi",),
    request="hi",
    max_tokens=None,
    has_tools=False,
    has_schema=False,
    stream=False,
    user="user:ann",
    key="peer:@",
)
CASCADE = Cascade(small="small", large="large", mean_logprob=-1.0, when_streaming=WhenStreaming.HOLD)


@pytest.mark.parametrize(
    ("rule", "changes", "holds"),
    [
        ({"tools": True}, {"has_tools": True}, True),
        ({"tools": True}, {}, False),
        ({"tools": False}, {}, True),
        ({"schema": True}, {"has_schema": True}, True),
        ({"schema": True, "tools": True}, {"has_schema": True}, False),
        ({"max_tokens_over": 100}, {"max_tokens": 101}, True),
        ({"max_tokens_over": 100}, {"max_tokens": 100}, False),
        ({"max_tokens_over": 100}, {}, False),
        ({"prompt_tokens_over": 7}, {"num_token_ids": 8}, True),
        ({"prompt_tokens_over": 8}, {"num_token_ids": 8}, False),
    ],
)
def test_a_rule_holds_if_all_of_it_does(
    rule: dict[str, object], changes: dict[str, object], holds: bool
) -> None:
    router_input = msgspec.structs.replace(INPUT, **changes)
    found = by_rules([Rule(route="large", **rule)], router_input, lambda: router_input.num_token_ids)  # type: ignore[arg-type]
    assert (found is not None) == holds


def test_the_first_rule_that_holds_decides_and_tokens_are_counted_only_if_they_matter() -> None:
    def count() -> int:
        raise AssertionError("no rule needs the count")

    rules = [Rule(route="a", tools=True), Rule(route="b", schema=False), Rule(route="c", schema=False)]
    assert by_rules(rules, INPUT, count) == (2, rules[1])


def test_routes_are_drawn_by_weight_and_a_label_keeps_its_route() -> None:
    shares = Shares(weights=(("a", 3.0), ("never", 0.0), ("b", 1.0)), sticky=Stickiness.USER)
    labels = [f"user:{number}" for number in range(4000)]
    drawn = [by_share(shares, sticky_draw("auto", label)) for label in labels]
    assert drawn == [by_share(shares, sticky_draw("auto", label)) for label in labels]
    counts = Counter(drawn)
    assert set(counts) == {"a", "b"}
    assert 2850 < counts["a"] < 3150
    assert drawn != [by_share(shares, sticky_draw("other", label)) for label in labels]


@pytest.mark.parametrize(("draw", "route"), [(0.0, "a"), (0.74, "a"), (0.75, "b"), (1 - 2**-53, "b")])
def test_draws_at_the_borders_of_shares(draw: float, route: str) -> None:
    shares = Shares(weights=(("none", 0.0), ("a", 3.0), ("b", 1.0), ("last", 0.0)), sticky=Stickiness.KEY)
    assert by_share(shares, draw) == route


def test_the_nearest_example_is_found_by_angle_not_by_length() -> None:
    examples = np.array([[10, 0], [0.1, 0.1], [0, 0]], np.float32)
    index, similarity = nearest_example(examples, np.array([[3, 3]], np.float32))
    assert (index, round(similarity, 5)) == (1, 1.0)


def judged(*logprobs: float, is_cut: bool = False, has_form: bool = False) -> JudgedAnswer:
    finish = FinishReason.LENGTH if is_cut else FinishReason.STOP
    return JudgedAnswer(logprobs=logprobs, finish=finish, has_form=has_form)


@pytest.mark.parametrize(
    ("answers", "route", "reason"),
    [
        ([judged(-0.5, -1.4, has_form=True)], "small", RouteReason.SURE),
        ([judged(-0.5, -1.6)], "large", RouteReason.UNSURE),
        ([judged(-0.1, is_cut=True, has_form=True)], "large", RouteReason.CUT),
        ([judged(-0.1, is_cut=True)], "small", RouteReason.SURE),
        ([judged()], "large", RouteReason.UNSURE),
        ([judged(-0.1), judged(-9.0)], "large", RouteReason.UNSURE),
    ],
)
def test_a_cascade_judges_the_worst_of_the_answers(
    answers: list[JudgedAnswer], route: str, reason: RouteReason
) -> None:
    decision = verdict(CASCADE, answers)
    assert (decision.route, decision.reason) == (route, reason)


KINDS: dict[str, ModelKind | None] = {
    "small": ModelKind.GENERATES,
    "vectors": ModelKind.EMBEDS,
    "scores": ModelKind.RERANKS,
    "broken": None,
}


def router(name: str, way: RoutingPolicy = Rules(()), **routes: str) -> RouterOptions:  # noqa: B008 (frozen)
    return RouterOptions(names=(name, f"{name}-too"), routes=routes, otherwise=next(iter(routes)), way=way)


def test_routes_to_models_and_to_routers_that_end_at_models_are_accepted() -> None:
    classifier = Classifier(model="small", prompt="{request}", timeout_s=1)
    routers = [
        router("one", a="small", b="two-too", c="small:adapter"),
        router("two", classifier, a="small", b="broken"),
        router("three", CASCADE, a="small", b="broken"),
        router(
            "four", Examples(model="vectors", texts=(), least_similarity=0, timeout_s=1), a="one", b="two"
        ),
    ]
    assert problem(routers, KINDS) is None


@pytest.mark.parametrize(
    ("routers", "message"),
    [
        ([router("r", a="none")], "a = 'none': unknown model; the models are small, vectors"),
        ([router("r", a="vectors")], "a = 'vectors' embeds: it must be a model that generates text"),
        ([router("r", a="none:adapter")], "a = 'none:adapter': unknown model"),
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
def test_a_bad_router_is_refused_in_one_line(routers: list[RouterOptions], message: str) -> None:
    refusal = problem(routers, KINDS)
    assert message in refusal
    assert "\n" not in refusal
