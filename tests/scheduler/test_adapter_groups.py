"""Stories about the order of steps where each step has one adapter."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import Step
from tests.scheduler.driver import Driver, TokenCost, request

BATCH = Priority.BATCH
PROMPT = tuple(range(2, 152))


def call(name: str, adapter: str | None, **more: object) -> GenerationRequest:
    return request(name, adapter=adapter, **more)  # type: ignore[arg-type]


def group_of(step: dict[str, int]) -> str:
    letters = {name[0] for name in step}
    assert len(letters) <= 1, f"{step} mixes adapters"
    return "".join(letters)


def test_steps_of_the_base_model_are_the_same_with_and_without_adapters() -> None:
    plain, with_others = Driver(), Driver()
    with_others.run(call("x", "one", output=3))
    for driver in (plain, with_others):
        driver.submit(*(call(f"b{i}", None, prompt=40, output=9) for i in range(5)))
    assert plain.run() == with_others.run()


def test_cells_of_another_adapter_are_neither_shared_nor_restored() -> None:
    driver = Driver(cache_blocks=64)
    for name, adapter in (
        ("b1", None),
        ("a1", "french@1"),
        ("a2", "french@1"),
        ("b2", None),
        ("c", "french@2"),
    ):
        driver.run(call(name, adapter, tokens=PROMPT))
    assert driver.cached == {"b1": 0, "a1": 0, "a2": 149, "b2": 149, "c": 0}
    driver = Driver(cache_blocks=64)
    driver.run(call("b", None, output=20, tokens=PROMPT), call("a", "one", output=20, tokens=PROMPT))
    assert driver.cached == {"a": 0, "b": 0}, "no cells are shared while both run either"


def spent_ms(driver: Driver, num_steps: int) -> Counter[str]:
    spent: Counter[str] = Counter()
    for _ in range(num_steps):
        spent[group_of(driver.step())] += driver.predicted_ms[-1]  # type: ignore[assignment]
    return spent


def test_interactive_groups_share_the_time() -> None:
    driver = Driver(slots=16, cost=TokenCost(step_ms=30.0), decoding=200)
    driver.submit(*(call(f"a{i}", "one", output=200) for i in range(8)), call("b", None, output=200))
    spent = spent_ms(driver, 100)
    assert spent["a"] == pytest.approx(spent["b"], rel=0.25)


def test_a_newcomer_of_another_group_is_next() -> None:
    driver = Driver(cost=TokenCost(step_ms=5.0))
    driver.submit(*(call(f"a{i}", "one", output=300) for i in range(4)))
    for number in range(10):
        driver.steps(7)
        assert group_of(driver.step(call(f"c{number}", f"adapter{number}", prompt=8, output=2))) == "c"


def test_interactive_work_of_any_group_goes_before_batch_work_of_any_group() -> None:
    driver = Driver(floor=0.0)
    driver.step(call("x", "one", output=30, priority=BATCH), call("y", None, output=30, priority=BATCH))
    driver.submit(call("a", "two", output=20))
    assert [group_of(driver.step()) for _ in range(20)] == ["a"] * 20


def test_batch_work_of_waiting_groups_keeps_its_floor() -> None:
    driver = Driver(cost=TokenCost(step_ms=20.0), decoding=100, idle=200)
    driver.submit(call("a", "one", output=400))
    driver.submit(*(call(name, key, output=400, priority=BATCH) for name, key in (("x", "two"), ("y", None))))
    spent = spent_ms(driver, 300)
    assert 0.05 < (spent["x"] + spent["y"]) / spent.total() < 0.15
    assert spent["x"] == pytest.approx(spent["y"], rel=0.5)


def test_batch_steps_beside_interactive_work_of_others_are_short() -> None:
    driver = Driver(decoding=24, idle=64, kv_tokens=2048)
    driver.submit(call("a", "one", output=900), call("x", "two", prompt=900, output=1, priority=BATCH))
    assert 0 < max(step.get("x", 0) for step in driver.steps(800)) <= 24


def test_batch_work_never_takes_two_steps_in_a_row_beside_interactive_work() -> None:
    driver = Driver(slots=8, floor=1.0)
    driver.submit(call("a", "one", output=500), call("x", "two", output=500, priority=BATCH))
    steps = [group_of(driver.step(call(f"c{n}", "three", prompt=4, output=1))) for n in range(60)]
    assert "x" in steps
    assert ("x", "x") not in pairwise(steps)


def test_batch_groups_alone_share_the_time_in_longer_turns() -> None:
    last: list[str | None] = [None]

    def elapsed_ms(step: Step) -> float:
        before, last[0] = last[0], step.adapter
        return 23.0 + (4.0 if step.adapter != before else 0.0)

    driver = Driver(cost=TokenCost(step_ms=20.0), decoding=100, idle=200, elapsed_ms=elapsed_ms)
    driver.submit(*(call(name, name, output=200, priority=BATCH) for name in ("x", "y")))
    steps = [group_of(driver.step()) for _ in range(200)]
    assert 0.4 < steps.count("x") / len(steps) < 0.6
    assert sum(one != other for one, other in pairwise(steps)) < 40


Arrival = tuple[int, int, bool, int]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.booleans(), st.integers(0, 6)), max_size=40),
    st.integers(0, 20),
)
@settings(max_examples=100)
def test_no_sequence_starves_whatever_arrives(arrivals: list[Arrival], step_ms: int) -> None:
    driver = Driver(slots=6, kv_tokens=2048, cost=TokenCost(step_ms=float(step_ms)))
    for number, (group, prompt, is_batch, num_steps) in enumerate(arrivals):
        adapter = None if group == 0 else f"adapter{group}"
        one = call(f"{group}-{number}", adapter, prompt=prompt, output=8, priority=Priority(is_batch))
        driver.submit(one)
        for _ in range(num_steps):
            group_of(driver.step())
    driver.run(max_steps=40 * len(arrivals) + 50)


def test_an_adapter_group_that_gets_no_cells_does_not_keep_its_turn() -> None:
    """Sequences of other adapter groups hold the whole pool, and wait for the turn."""
    driver = Driver(slots=4, kv_tokens=128)
    driver.submit(call("b1", None, prompt=2, output=60), call("b2", None, prompt=2, output=60))
    driver.run(call("a1", "two", prompt=60, output=20, priority=BATCH))
    assert {name: len(tokens) for name, tokens in driver.outputs.items()} == {"b1": 60, "b2": 60, "a1": 20}
