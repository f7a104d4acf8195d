"""Stories about the composition of a step: budgets, tiles, fairness, the floor of batch work."""

from __future__ import annotations

from typing import Any

import pytest

from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.scheduler.plan import StepReason
from openai_cpu_server.scheduler.sequence import ShortestFirstPolicy
from tests.scheduler.driver import Driver, TokenCost, request

BATCH = Priority.BATCH


def until_all_decode(driver: Driver, *requests: GenerationRequest) -> None:
    driver.submit(*requests)
    driver.run_until(lambda: all(driver.outputs[one.id] for one in requests), max_steps=20)


def with_grammar(pattern: str, **more: object) -> dict[str, object]:
    return {"constraint": Constraint(grammar=pattern, **more)}


BURST = {"a": with_grammar("?" + 30 * "x" + "?"), "b": with_grammar("?" + 9 * "x" + "?")}
LAST_STEP: dict[str, tuple[dict[str, Any], list[list[GenerationRequest]], dict[str, int]]] = {
    "a newcomer joins the next step": (
        {}, [[request("a", output=10)], [request("b", prompt=8)]], {"a": 1, "b": 8}),
    "interactive prompts are read before batch prompts": (
        {}, [[request("b", prompt=60, priority=BATCH), request("i", prompt=20)]], {"i": 20, "b": 12}),
    "interactive work takes the slot of batch work": (
        {"slots": 1}, [[request("b", output=20, priority=BATCH)], [request("i")]], {"i": 4}),
    "but not the slot of other work": ({"slots": 1}, [[request("a", output=20)], [request("i")]], {"a": 1}),
    "a short prompt does not wait for a whole long one": (
        {}, [[request("long", prompt=500)], [request("short", prompt=30)]], {"long": 32, "short": 30}),
    "newcomers share a step where a second step would cost more": (
        {"decoding": 64, "idle": 128, "cost": TokenCost(step_ms=40)},
        [[request("p", prompt=30, output=1), request("q", prompt=30, output=1)]], {"p": 30, "q": 30}),
    "the shortest burst ends first": (
        {"stall": 32, "idle": 80, "cost": TokenCost(step_ms=16)},
        [[request(name, output=60, **BURST[name]) for name in "ab"], []], {"a": 6, "b": 10}),
    "forced tokens of batch work wait for room in the budget": (
        {"decoding": 16, "floor": 0.0},
        [[request("b", output=80, priority=BATCH, **BURST["a"])], [request("i", prompt=10, output=3)]],
        {"b": 6, "i": 10}),
    "without mixed steps bursts are computed beside decoding": (
        {"mixes": False}, [[request("b", output=5)], [request("a", output=80, **with_grammar("?bcde?"))], []],
        {"a": 5, "b": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAST_STEP)
def test_the_step_after_these_requests(name: str) -> None:
    options, submitted, expected = LAST_STEP[name]
    driver = Driver(**options)
    steps = [driver.step(*requests) for requests in submitted]
    assert steps[-1] == expected
    driver.run()


def test_batch_work_that_is_left_out_of_a_step_keeps_its_cells() -> None:
    driver = Driver(decoding=16, idle=64, floor=0.0)
    driver.step(request("b", prompt=50, output=20, priority=BATCH))
    driver.run(request("i", prompt=64, output=30))
    assert driver.backend.num_computed == 50 + 19 + 64 + 29


def test_a_newcomer_does_not_wait_for_the_prompt_of_another() -> None:
    """A step for both prompts would end when the second of two steps ends, so it would delay the first."""
    driver = Driver(slots=16, cost=TokenCost(step_ms=10))
    until_all_decode(driver, *(request(f"d{n}", output=90) for n in range(5)))
    driver.submit(request("p", prompt=30, output=1), request("q", prompt=30, output=1))
    steps = [driver.step(), driver.step()]
    assert [(step.get("p"), step.get("q")) for step in steps] == [(30, None), (None, 30)]


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("stateful", [False, True])
def test_a_step_of_prompts_stops_at_the_largest_size_that_pays(priority: Priority, stateful: bool) -> None:
    driver = Driver(idle=1024, cost=TokenCost(chunk=96), stateful=stateful)
    driver.submit(*(request(f"p{n}", prompt=150, output=1, priority=priority) for n in range(2)))
    sizes = [sum(step.values()) for step in driver.steps(3)]
    assert max(sizes) == 96


def test_a_step_grows_to_the_cheaper_size_with_waiting_prompt_tokens_or_with_padding() -> None:
    driver = Driver(slots=16, decoding=12, idle=64, tiles=(16,))
    until_all_decode(driver, *(request(f"d{n}", output=40) for n in range(10)))
    driver.step()
    assert driver.paddings[-1] == 6
    step = driver.step(request("p", prompt=100, priority=BATCH))
    assert (sum(step.values()), step["p"], driver.paddings[-1]) == (16, 6, 0)


def test_without_mixed_steps_prompts_are_read_before_decoding() -> None:
    driver = Driver(mixes=False, idle=64)
    driver.step(request("a", output=5))
    driver.submit(request("b", prompt=80))
    assert driver.steps(3) == [{"b": 64}, {"b": 16}, {"a": 1, "b": 1}]


def test_without_continuous_batching_newcomers_wait_for_the_whole_batch() -> None:
    driver = Driver(continuous=False, slots=3)
    driver.step(request("a", prompt=8, output=2), request("b", prompt=8, output=4))
    driver.run(request("c", prompt=8, output=1), request("d", prompt=8, output=1))
    assert driver.finished == ["a", "b", "c", "d"], "there was room for c from the start"


def reasons(driver: Driver, name: str) -> dict[StepReason, int]:
    return driver.scheduler.plan.reasons().get(driver.scheduler.sequences.get(name), {})


def test_every_token_of_a_step_has_a_reason() -> None:
    cost = TokenCost(tiles=(30,), step_ms=60)
    driver = Driver(slots=16, decoding=64, stall=68, idle=124, cost=cost, floor=0.0)
    driver.submit(request("f", output=40, **with_grammar("?" + 8 * "x" + 9 * "?")))
    driver.step(*(request(f"d{n}", output=40) for n in range(3)))
    step = driver.step(request("p", prompt=100), request("b", prompt=100, priority=BATCH))
    assert step == {"f": 9, "d0": 1, "d1": 1, "d2": 1, "p": 18}
    assert reasons(driver, "f") == {StepReason.DECODE: 1, StepReason.FORCED: 4, StepReason.TILE: 4}
    assert reasons(driver, "d0") == {StepReason.DECODE: 1}
    assert reasons(driver, "p") == {StepReason.LEAST: 16, StepReason.TILE: 2}
    assert reasons(driver, "b") == {}


def test_batch_tokens_within_the_floor_have_a_reason_of_their_own() -> None:
    driver = Driver(slots=8, decoding=16, idle=64, floor=0.25, kv_tokens=8192)
    driver.submit(request("b", prompt=400, output=200, priority=BATCH))
    driver.submit(*(request(f"i{n}", prompt=400, output=100) for n in range(3)))
    driver.run_until(lambda: StepReason.BATCH_FLOOR in reasons(driver, "b"), max_steps=20)


def test_where_cells_are_short_reasons_predictions_and_prices_cover_only_tokens_with_cells() -> None:
    driver = Driver(slots=4, kv_tokens=64, idle=64)
    driver.step(request("a", prompt=30, output=30, priority=BATCH))
    driver.submit(request("b", prompt=33, output=20, priority=BATCH))
    while driver.scheduler.has_work:
        running = [name for name in "ab" if driver.scheduler.sequences.get(name)]
        step = driver.step()
        for name in running:
            if driver.scheduler.sequences.get(name):
                assert sum(reasons(driver, name).values()) == step.get(name, 0)
        if step:
            size = sum(step.values()) + driver.paddings[-1]
            assert driver.cost.learned[-1][0] == size
            assert driver.predicted_ms[-1] <= size + 1


def test_clients_take_turns_and_so_do_groups_whatever_the_names_of_their_clients() -> None:
    driver = Driver(slots=1)
    driver.submit(*(request(f"a{n}", client="a", group="here") for n in range(3)))
    driver.submit(*(request(f"b{n}", client=f"b{n}", group="here") for n in range(2)))
    driver.run(*(request(f"c{n}", client="a", group="there") for n in range(2)))
    assert driver.finished == ["a0", "c0", "b0", "c1", "b1", "a1", "a2"]


def test_shortest_first_does_not_starve_long_requests() -> None:
    driver = Driver(slots=1, policy=ShortestFirstPolicy())
    driver.run(request("first"), request("long", output=100), request("short", output=5))
    assert driver.finished in (["first", "short", "long"], ["short", "first", "long"])
    driver.step(request("hold", output=20))
    driver.submit(request("old", output=100))
    driver.now_s += 10
    driver.run(request("new", output=50))
    assert driver.finished[-2:] == ["old", "new"]


def test_a_sequence_whose_constraint_is_slow_is_left_out_unless_it_is_alone() -> None:
    driver = Driver()
    driver.step(request("slow", output=9), request("other", output=9))
    slow = driver.scheduler.sequences.get("slow")
    assert slow is not None
    driver.backend.unready = frozenset({slow.slot})
    assert [*driver.step()] == ["other"]
    driver.cancel("other")
    assert [*driver.step()] == ["slow"]


def test_only_long_steps_without_interactive_work_may_be_interrupted() -> None:
    driver = Driver(decoding=32, idle=64)
    driver.step(request("b", prompt=30, priority=BATCH))
    assert driver.interruptible == [False]
    driver.submit(request("long", prompt=200, priority=BATCH))
    assert driver.scheduler.schedule().may_be_interrupted
    driver.submit(request("i"))
    assert not driver.scheduler.schedule().may_be_interrupted


@pytest.mark.parametrize(("priority", "num_tokens"), [(Priority.INTERACTIVE, 64), (BATCH, 32)])
def test_a_prompt_step_beside_another_models_interactive_work_is_as_short_as_beside_a_stream(
    priority: Priority, num_tokens: int
) -> None:
    driver = Driver(decoding=32, stall=64, idle=256)
    one = request("p", prompt=500, priority=priority)
    assert driver.step(one, beside_interactive=True) == {"p": num_tokens}


def test_forced_tokens_are_computed_with_the_token_before_them_or_with_the_prompt() -> None:
    for constraint, steps in (
        (with_grammar("?bcd?f"), [{"a": 6}, {"a": 4}, {}]),
        (with_grammar("{ab?", opening=(7, 8)), [{"a": 11}, {}]),
    ):
        assert Driver().run(request("a", prompt=6, output=40, **constraint)) == steps


def test_forced_tokens_keep_to_the_stall_limit_of_streams() -> None:
    driver = Driver(decoding=16, stall=16, idle=64)
    until_all_decode(driver, request("b", output=90))
    until_all_decode(driver, request("a", output=90, **with_grammar("?" + 60 * "x" + "?")))
    steps = driver.run()
    assert all(sum(step.values()) <= 16 for step in steps)
    assert [step["b"] for step in steps[:5]] == [1] * 5
    assert [step["a"] for step in steps[:5]] == [15, 15, 15, 15, 1]


def streaming(**options: int) -> Driver:
    driver = Driver(kv_tokens=4096, **options)
    driver.submit(request("a", output=400), request("b", output=400))
    driver.steps(40)
    return driver


BESIDE_STREAMS = {
    "a short prompt is read in one step of a stall": (20, 60, 55, [57]),
    "a long prompt is read at the rate that streams keep": (20, 60, 300, [60, 20, 20, 20, 20, 20]),
    "a stall limit below the interval of the rate makes streams faster": (60, 20, 100, [20, 20, 20]),
}


@pytest.mark.parametrize("name", BESIDE_STREAMS)
def test_prompts_beside_streams(name: str) -> None:
    decoding, stall, prompt, sizes = BESIDE_STREAMS[name]
    driver = streaming(decoding=decoding, stall=stall, idle=100)
    driver.submit(request("p", prompt=prompt))
    steps = driver.steps(len(sizes))
    assert [sum(step.values()) for step in steps] == sizes
    assert all((step["a"], step["b"]) == (1, 1) for step in steps)


def test_streams_regain_their_slack_after_some_steps() -> None:
    driver = streaming(decoding=20, stall=60, idle=100)
    driver.step(request("p", prompt=58, output=1))
    driver.step()
    assert driver.step(request("q", prompt=100))["q"] == 20 + 18 - 2
    driver.cancel("q")
    driver.steps(40)
    assert driver.step(request("r", prompt=100))["r"] == 58


def test_a_step_of_batch_work_alone_takes_from_the_slack() -> None:
    driver = Driver(decoding=20, stall=60, idle=100, floor=0.5, kv_tokens=4096)
    driver.submit(request("i", output=400), request("b", prompt=300, output=60, priority=BATCH))
    gap, gaps = 0, []
    for _ in range(60):
        step = driver.step()
        gap += sum(step.values())
        if "i" in step:
            gaps.append(gap)
            gap = 0
    assert max(gaps[1:]) <= 60


def test_scored_prompts_leave_the_batch_work_its_outputs() -> None:
    """A step has time for all tokens of the prompts, but not a row of logits for each of them."""
    driver = Driver(decoding=400, idle=400, rows=40, kv_tokens=4096)
    driver.submit(request("b", prompt=20, output=10, priority=BATCH))
    steps = driver.run(*(request(f"s{n}", prompt=300, output=0, prompt_logprobs=True) for n in range(4)))
    assert max(number for number, step in enumerate(steps) if "b" in step) < 15
