"""Predictions of the cost model from a measured staircase, and learning from steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.step import Close, Restore, Save, Span, Step, StepResult
from openai_cpu_server.scheduler.cost_model import CopyPrice, CostModel, LearnedCosts
from tests.scheduler.driver import TokenCost

REPACKED = CostCurve(
    step_ms=(
        *((1, 24.0), (2, 40.0), (4, 68.0), (8, 150.0), (12, 174.0), (15, 212.0), (16, 151.0), (17, 187.0)),
        *((24, 252.0), (32, 310.0), (48, 381.0), (64, 510.0), (128, 1058.0)),
    ),
    attended_ms=0.006,
)  # docs/measurements.md: the GEMM kernel with tiles of 16 rows
PLAIN = CostCurve(
    step_ms=((1, 26.0), (8, 134.0), (12, 140.0), (16, 142.0), (17, 205.0), (32, 206.0), (64, 361.0)),
    attended_ms=0.006,
)
LINE = CostCurve(step_ms=((1, 10.0), (64, 640.0)), attended_ms=0.0)

positive = st.floats(0.001, 1e5)
curves = st.builds(
    lambda points, price: CostCurve(step_ms=tuple(sorted(points.items())), attended_ms=price),
    st.dictionaries(st.integers(1, 300), positive, min_size=1, max_size=20),
    st.floats(-0.1, 1.0),
)
pairs = st.integers(0, 10**7)


FROM_8 = CostCurve(step_ms=((8, 100.0), (16, 120.0)), attended_ms=0)
NOISY = CostCurve(step_ms=((1, 10.0), (32, 300.0), (64, 250.0)), attended_ms=0)
PREDICTED = {
    **{f"a measured point, {n}": (c, dict(c.step_ms)) for n, c in enumerate([REPACKED, PLAIN, LINE])},
    "between two points of a tile lies a straight line": (
        REPACKED, {10: 162, 20: 187 + (252 - 187) * 3 / 7}),
    "a tile with only its ends measured climbs as the second tile does": (
        PLAIN, {48: (206 + 361) / 2, 49: 283.5 + (205 - 142) / (206 - 142) * 77.5}),
    "below the first point a step costs as much as at that point": (FROM_8, {1: 100.0, 7: 100.0, 8: 100.0}),
    "beyond the last point costs follow the last slope": (REPACKED, {256: 1058 + 128 * (1058 - 510) / 64}),
    "a slope that noise has turned down is ignored": (NOISY, {128: 500}),
}  # fmt: skip


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions(name: str) -> None:
    curve, expected = PREDICTED[name]
    model = CostModel(curve)
    assert {n: model.predict_ms(n) for n in expected} == pytest.approx(expected)


def test_the_end_of_a_tile_and_attended_pairs_have_their_price() -> None:
    assert CostModel(PLAIN).predict_ms(56) == pytest.approx(361, rel=0.01)
    assert CostModel(REPACKED).predict_ms(16, 16_000) == pytest.approx(151 + 96)
    assert [attended_pairs(100, 1), attended_pairs(0, 4), attended_pairs(10, 3)] == [100, 6, 33]


@given(curves, st.integers(0, 3000), pairs, pairs)
def test_predictions_are_never_negative_and_grow_with_attended_pairs(
    curve: CostCurve, num_tokens: int, some: int, more: int
) -> None:
    model = CostModel(curve)
    assert 0 <= model.predict_ms(num_tokens, some) <= model.predict_ms(num_tokens, some + more)


def test_an_unmeasured_model_is_guessed_by_its_size() -> None:
    small, large = CostModel.guess(10**9), CostModel.guess(7 * 10**9)
    assert large.predict_ms(16, 1000) == pytest.approx(7 * small.predict_ms(16, 1000))
    assert small.predict_ms(1) < small.predict_ms(16) < small.predict_ms(256)


def test_a_step_is_grown_only_where_the_larger_size_is_cheaper() -> None:
    model = CostModel(REPACKED)
    sizes = {n: model.cheapest_size(n, 128) for n in range(18)}
    assert {n for n, size in sizes.items() if size == 16} == {9, 10, 11, 12, 13, 14, 15, 16}
    assert all(sizes[n] == n for n in (0, 1, 7, 8, 16, 17))


def test_no_size_is_cheaper_on_a_line_beyond_the_limit_or_where_nothing_was_measured() -> None:
    line, repacked = CostModel(LINE), CostModel(REPACKED)
    assert [line.cheapest_size(n, 64) for n in range(65)] == list(range(65))
    assert repacked.cheapest_size(12, 15) == 12
    assert repacked.cheapest_size(1000, 2000) == 1000


@given(curves, st.integers(0, 400), st.integers(0, 100))
def test_a_grown_step_is_cheaper_and_within_a_tile(curve: CostCurve, num_tokens: int, spare: int) -> None:
    model = CostModel(curve)
    size = model.cheapest_size(num_tokens, num_tokens + spare)
    assert num_tokens <= size <= num_tokens + min(spare, 15)
    assert size == num_tokens or model.predict_ms(size) < model.predict_ms(num_tokens)


def learn(model: CostModel, truth: CostModel, steps: int, noise: float = 0.0, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(steps):
        n = rng.choice([1, 8, 15, 16, 17, 30, 32, 64, 100, 128])
        pairs = n * rng.choice([0, 100, 1000, 2000])
        model.refine(n, pairs, truth.predict_ms(n, pairs) * rng.uniform(1 - noise, 1 + noise))


@given(st.floats(0.3, 3.0), st.floats(0.3, 3.0))
def test_a_shifted_truth_is_learnt(step: float, attention: float) -> None:
    shifted = tuple((n, ms * step) for n, ms in REPACKED.step_ms)
    truth = CostModel(CostCurve(step_ms=shifted, attended_ms=REPACKED.attended_ms * attention))
    model = CostModel(REPACKED)
    learn(model, truth, 1500, noise=0.1)
    for n, pairs in [(1, 0), (16, 0), (16, 16_000), (64, 64_000), (128, 0)]:
        assert model.predict_ms(n, pairs) == pytest.approx(truth.predict_ms(n, pairs), rel=0.2)


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=5))
def test_a_few_outliers_move_little(actuals: list[float]) -> None:
    model = CostModel(REPACKED)
    before = model.predict_ms(16, 16_000)
    for ms in actuals:
        model.refine(16, 16_000, ms)
    assert model.predict_ms(16, 16_000) == pytest.approx(before, rel=0.07 * len(actuals))


def test_one_tile_in_twenty_disturbed_does_not_wreck_the_rest() -> None:
    model, truth = CostModel(REPACKED), CostModel(REPACKED)
    for _ in range(40):
        learn(model, truth, 19)
        model.refine(16, 0, 5000.0)
    assert model.predict_ms(64) == pytest.approx(510, rel=0.15)


def test_a_learnt_tile_keeps_the_ratios_of_the_curve_within_it() -> None:
    model = CostModel(REPACKED)
    for _ in range(200):
        model.refine(12, 0, 100.0)
        model.refine(512, 0, 10_000.0)
    assert model.predict_ms(12) == pytest.approx(100, rel=0.05)
    assert model.cheapest_size(12, 64) == 16
    assert model.predict_ms(15) / model.predict_ms(16) == pytest.approx(212 / 151)
    assert model.predict_ms(512) == pytest.approx(10_000, rel=0.05), "larger than any measured size"


def test_a_step_without_time_or_tokens_teaches_nothing() -> None:
    model = CostModel(REPACKED)
    for size, actual in ((16, 0.0), (16, -5.0), (0, 100.0)):
        model.refine(size, 0, actual)
    assert model.curve.step_ms[15] == (16, 151.0)


@settings(max_examples=50)
@given(curves, st.lists(st.tuples(st.integers(1, 400), pairs, st.floats(1e-9, 1e12)), max_size=30))
def test_predictions_stay_sane_after_any_steps(curve: CostCurve, steps: list[tuple[int, int, float]]) -> None:
    model = CostModel(curve)
    for num_tokens, attended, ms in steps:
        model.refine(num_tokens, attended, ms)
    fresh = CostModel(curve)
    for n in (1, 16, 17, 300, 500):
        assert 0 <= model.predict_ms(n, 100) <= 65 * fresh.predict_ms(n, 100)


def test_a_learnt_model_can_be_stored_as_a_curve() -> None:
    model = CostModel(REPACKED)
    learn(model, CostModel.guess(), 200)
    restored = CostModel(model.curve)
    for n in range(1, 129):
        assert restored.predict_ms(n, 1000) == pytest.approx(model.predict_ms(n, 1000))


def test_useful_tokens_are_free_up_to_the_end_of_a_flat_tile() -> None:
    points = ((1, 26.0), (8, 134.0), (16, 142.0), (17, 205.0), (32, 206.0), (48, 400.0))
    model = CostModel(CostCurve(step_ms=points, attended_ms=0.0))
    assert model.free_size(17, 256) == 32
    assert model.free_size(17, 24) == 24
    steep = CostModel(CostCurve(step_ms=((1, 10.0), (16, 160.0)), attended_ms=0.0))
    assert steep.free_size(5, 256) == 5


@pytest.mark.parametrize(
    ("at_512", "chunk"),
    [(1060.0, 256), (1020.0, 304), (900.0, 448), (60.0, 512)],
    ids=["as cheap", "slightly cheaper", "cheaper", "flat"],
)
def test_a_chunk_is_the_smallest_that_is_about_as_cheap(at_512: float, chunk: int) -> None:
    points = ((1, 20.0), (128, 290.0), (256, 530.0), (512, at_512))
    model = CostModel(CostCurve(step_ms=points, attended_ms=0.0))
    assert model.chunk_size(2048) == chunk
    assert model.chunk_size(128) == 128
    unmeasured = CostModel(CostCurve(step_ms=points[:2], attended_ms=0.0))
    assert unmeasured.chunk_size(2048) == 2048


_VERBS = (Save(0, 0, 64, 1), Restore(1, 2, 0, 36), Close(0))


def test_the_price_of_copies_follows_their_time_and_other_verbs_cost_and_teach_nothing() -> None:
    price = CopyPrice()
    for _ in range(100):
        price.learn(_VERBS, 50.0)
        price.learn((Close(0),), 1000.0)
    assert abs(price.predict_ms(_VERBS) - 50.0) < 0.1
    assert price.predict_ms((Close(0),)) == 0.0


def new_costs() -> LearnedCosts:
    return LearnedCosts(TokenCost(), max_tokens=64, fills_tiles=False)


def step(adapter: str | None = None) -> Step:
    return Step(spans=(Span(0, 0, (1,) * 10, sample=True),), adapter=adapter)


def learn_step(costs: LearnedCosts, one: Step, elapsed_ms: float, drafting_ms: float = 0.0) -> float | None:
    result = StepResult(drafting_ms=drafting_ms)
    learned_ms = costs.learn(one, result, size=10, attended=0, elapsed_ms=elapsed_ms)
    costs.executed(one)
    return learned_ms


def test_the_model_learns_the_time_of_steps_without_an_adapter_except_for_drafting() -> None:
    costs = new_costs()
    assert learn_step(costs, step(), 25.0, drafting_ms=5.0) == 15.0
    assert costs.model.learned == [(10, 20.0)]  # type: ignore[attr-defined]


def test_a_step_that_switches_adapters_teaches_only_the_time_of_a_switch() -> None:
    costs = new_costs()
    before_ms, predicted_ms = costs.switch_ms, costs.predict_ms(step("one"), 0)
    assert predicted_ms == pytest.approx(costs.of("one").predict_ms(10) + before_ms)
    assert learn_step(costs, step("one"), predicted_ms + 10.0) is None
    assert costs.switch_ms > before_ms
    assert costs.predict_ms(step("one"), 0) == pytest.approx(costs.of("one").predict_ms(10))
    assert costs.model.learned == []  # type: ignore[attr-defined]


def test_each_adapter_learns_for_itself() -> None:
    costs = new_costs()
    for _ in range(30):
        learn_step(costs, step("one"), 30.0)
    assert costs.prices("one").cost.predict_ms(10) == pytest.approx(30.0, rel=0.01)
    assert costs.prices("two").cost.predict_ms(10) < 12
    assert costs.prices(None).cost.predict_ms(10) == 10
    costs.forget_adapter("one")
    assert costs.of("one").predict_ms(10) < 12


def test_a_new_model_replaces_the_costs_of_all_adapters() -> None:
    costs = new_costs()
    costs.of("one")
    costs.model = TokenCost(step_ms=100)
    assert costs.of("one").predict_ms(10) > 100


def test_a_step_that_computes_nothing_switches_nothing_and_costs_the_time_of_copies() -> None:
    costs, copies = new_costs(), Step(verbs=(Save(0, 0, 1000, 1),))
    costs.executed(Step(adapter="one"))
    assert costs.predict_ms(step(), 0) == 10
    for _ in range(60):
        costs.learn_copying(copies, StepResult(verbs_ms=50.0))
    assert costs.predict_ms(copies, 0) == pytest.approx(50.0, rel=0.01)
