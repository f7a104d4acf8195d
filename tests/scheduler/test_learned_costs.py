"""What is learned from a step's time, and of what."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.step import Save, Span, Step, StepResult
from openai_cpu_server.scheduler.cost_model import LearnedCosts
from tests.scheduler.driver import TokenCost


def costs() -> LearnedCosts:
    return LearnedCosts(TokenCost(), max_tokens=64, fills_tiles=False)


def step(adapter: str | None = None) -> Step:
    return Step(spans=(Span(0, 0, (1,) * 10, sample=True),), adapter=adapter)


def computed(costs: LearnedCosts, one: Step, elapsed_ms: float, drafting_ms: float = 0.0) -> float | None:
    result = StepResult(drafting_ms=drafting_ms)
    told = costs.learn(one, result, size=10, attended=0, elapsed_ms=elapsed_ms)
    costs.executed(one)
    return told


def test_the_model_learns_from_steps_without_an_adapter_what_they_took_without_drafting() -> None:
    found = costs()
    assert computed(found, step(), 25.0, drafting_ms=5.0) == 15.0
    assert found.model.learned == [(10, 20.0)]  # type: ignore[attr-defined]


def test_a_step_that_switches_teaches_only_what_a_switch_takes() -> None:
    found = costs()
    before_ms, predicted_ms = found.switch_ms, found.predict_ms(step("one"), 0)
    assert predicted_ms == pytest.approx(found.of("one").predict_ms(10) + before_ms)
    assert computed(found, step("one"), predicted_ms + 10.0) is None
    assert found.switch_ms > before_ms
    assert found.predict_ms(step("one"), 0) == pytest.approx(found.of("one").predict_ms(10))
    assert found.model.learned == []  # type: ignore[attr-defined]


def test_each_adapter_learns_for_itself() -> None:
    found = costs()
    for _ in range(30):
        computed(found, step("one"), 30.0)
    assert found.prices("one").cost.predict_ms(10) == pytest.approx(30.0, rel=0.01)
    assert found.prices("two").cost.predict_ms(10) < 12
    assert found.prices(None).cost.predict_ms(10) == 10
    found.forget_adapter("one")
    assert found.of("one").predict_ms(10) < 12


def test_a_model_that_is_replaced_is_that_of_all_adapters() -> None:
    found = costs()
    found.of("one")
    found.model = TokenCost(step_ms=100)
    assert found.of("one").predict_ms(10) > 100


def test_a_step_that_computes_nothing_switches_nothing_and_costs_the_time_of_copies() -> None:
    found, copies = costs(), Step(verbs=(Save(0, 0, 1000, 1),))
    found.executed(Step(adapter="one"))
    assert found.predict_ms(step(), 0) == 10
    for _ in range(60):
        found.learn_copying(copies, StepResult(verbs_ms=50.0))
    assert found.predict_ms(copies, 0) == pytest.approx(50.0, rel=0.01)
