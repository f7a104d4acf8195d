"""Drafts: where they pay, and what they leave behind."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Drafted
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.drafts import Draft, ModelDrafter
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation import choose_lengths
from tests.scheduler.driver import Driver, KnowingDrafter, SilentDrafter, alone, request

REPACKED = ((1, 20), (8, 124), (12, 160), (16, 149), (17, 190), (32, 297), (64, 543), (128, 1031))
PLAIN = ((1, 26), (8, 134), (12, 140), (16, 142), (17, 205), (32, 206), (64, 361), (128, 644))
"""EVIDENCE.md, 1."""
FLAT = tuple((n, 10.0) for n in (1, 256))


def plan(num_decoding: int, curve: tuple[tuple[int, float], ...] = PLAIN, *, outputs: int = 128) -> StepPlan:
    """Of sequences that decode a token each."""
    model = CostModel(CostCurve(step_ms=curve, attended_ms=0.0, skipped_ms=0.0))
    made = StepPlan(model, pool_cells=100, max_tokens=256, max_outputs=outputs)
    for number in range(num_decoding):
        made.add(decoding(str(number), 3), 1)
    return made


def decoding(name: str, num_tokens: int) -> Sequence:
    """All but its last token is computed."""
    asked = GenerationRequest(id=name, tokens=(1,) * num_tokens, max_tokens=100, sampling=Sampling(seed=0))
    sequence = Sequence(asked, (), (), 0, 0.0)
    sequence.computed = num_tokens - 1
    return sequence


def lengths(made: StepPlan, *chances: float, tokens: int = 31) -> list[int]:
    """Of the plan's first sequences, each of whose draft tokens has such a chance."""
    drafting = dict(zip(made.parts, chances, strict=False))
    drafts = {s: Draft((7,) * tokens, (chance,) * tokens) for s, chance in drafting.items()}
    chosen = choose_lengths(made, drafts, always=False)
    return [chosen.get(sequence, 0) for sequence in drafting]


def test_a_lone_sure_quotation_drafts_whole_tiles() -> None:
    assert lengths(plan(1, PLAIN), 0.99) == [31]
    assert lengths(plan(1, REPACKED), 0.93) == [15]


def test_a_lone_guess_is_not_worth_it() -> None:
    for curve in (PLAIN, REPACKED):
        assert lengths(plan(1, curve), 0.5) == [0]


def test_what_is_left_of_a_tile_is_free() -> None:
    assert sum(lengths(plan(10), *([0.5] * 10))) == 6
    assert sum(lengths(plan(12, REPACKED), *([0.5] * 12))) == 4


def test_a_batch_at_the_bend_gets_no_drafts() -> None:
    assert lengths(plan(16), *([0.3] * 16)) == [0] * 16
    assert lengths(plan(32), *([0.7] * 32)) == [0] * 32
    assert lengths(plan(16, REPACKED), *([0.8] * 16)) == [0] * 16


def test_a_batch_of_sure_quotations_gains() -> None:
    assert sum(lengths(plan(16), *([0.95] * 16))) >= 16


def test_the_more_likely_draft_comes_first() -> None:
    short, long = lengths(plan(10), 0.4, 0.9)
    assert long > short
    assert short + long == 6


def test_who_quotes_does_not_slow_down_who_does_not() -> None:
    """Alone it would draft 31 tokens; beside others their time counts as much."""
    made = plan(3)
    before = made.padded_ms
    (chosen,) = lengths(made, 0.99)
    first = next(iter(made.parts))
    if chosen:
        made.add_draft(first, chosen)
    expected = 1 + sum(0.99**i for i in range(1, chosen + 1))
    assert made.padded_ms * (2 + 1 / expected) <= before * 3


def test_long_contexts_make_drafts_dearer() -> None:
    curve = CostCurve(step_ms=FLAT, attended_ms=1.0, skipped_ms=0.0)
    made = StepPlan(CostModel(curve), pool_cells=0, max_tokens=256, max_outputs=128)
    made.add(decoding("a", 1000), 1)
    assert lengths(made, 0.9) == [0]
    assert lengths(plan(1, FLAT), 0.9) == [31]


def test_no_more_is_drafted_than_the_backend_takes() -> None:
    assert sum(lengths(plan(4, FLAT, outputs=20), *([0.9] * 4))) == 16


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40),
    st.integers(0, 8),
    st.sampled_from([PLAIN, REPACKED, FLAT]),
)
def test_all_together_never_get_slower(
    chances: list[float], num_others: int, curve: tuple[tuple[int, float], ...]
) -> None:
    """Expected tokens per millisecond."""
    num_sequences = len(chances) + num_others
    made = plan(num_sequences, curve)
    before = num_sequences / made.padded_ms
    expected = float(num_sequences)
    for sequence, chance, length in zip(list(made.parts), chances, lengths(made, *chances), strict=False):
        if length:
            made.add_draft(sequence, length)
        expected += sum(chance**i for i in range(1, length + 1))
    assert expected / made.padded_ms >= before or math.isclose(expected / made.padded_ms, before)


def thought(chance: float, token_ms: float, first_ms: float = 0.0) -> Draft:
    return Draft(chances=(chance,) * 8, token_ms=token_ms, first_ms=first_ms)


def test_what_a_draft_model_costs_counts() -> None:
    """T(1) is 26 ms, T(4) some 72: four tokens for 2.8 steps' time gain only if thinking of them is cheap."""
    for token_ms, gains in ((0.5, True), (10.0, False)):
        made = plan(1)
        (sequence,) = made.parts
        chosen = choose_lengths(made, {sequence: thought(0.97, token_ms)}, always=False)
        assert bool(chosen) == gains
    made = plan(1)
    (sequence,) = made.parts
    assert not choose_lengths(made, {sequence: thought(0.97, 0.5, first_ms=100.0)}, always=False)


def test_a_dear_draft_does_not_spoil_a_free_one() -> None:
    made = plan(12, REPACKED)
    one, other, *_ = made.parts
    drafts = {one: thought(0.99, 50.0), other: Draft((7,) * 8, (0.9,) * 8)}
    chosen = choose_lengths(made, drafts, always=False)
    assert set(chosen) == {other}


def test_a_draft_model_that_is_wrong_is_asked_no_more_for_a_while() -> None:
    drafter, sequence = ModelDrafter(0.1), decoding("a", 20)
    at_first = drafter.draft(sequence, 8, 20.0)
    assert (len(at_first.chances), at_first.token_ms) == (8, 2.0)
    for _ in range(30):
        drafter.learn(sequence, Drafted(4, 0, num_known=20))
    assert drafter.draft(sequence, 8, 20.0).chances[0] < 0.1
    newcomer = decoding("b", 20)
    soon = drafter.draft(newcomer, 8, 20.0).chances[0]
    assert soon < 0.2
    for _ in range(20_000):
        drafter.draft(newcomer, 8, 20.0)
    assert drafter.draft(newcomer, 8, 20.0).chances[0] > 0.5


def test_the_price_of_a_draft_model_is_learned_where_it_need_not_read_first() -> None:
    drafter, sequence = ModelDrafter(0.1), decoding("a", 200)
    outcomes = {sequence: Drafted(4, 0, num_known=200)}
    reading = drafter.draft(sequence, 8, 20.0)
    assert reading.first_ms > 0
    drafter.learn_price(outcomes, 400.0)
    assert drafter.draft(sequence, 8, 20.0).token_ms == reading.token_ms
    drafter.learn_price(outcomes, 12.0)
    assert drafter.draft(sequence, 8, 20.0).token_ms == 3.0
    assert drafter.draft(sequence, 8, 20.0).first_ms == 0


def test_a_draft_model_saves_steps_and_changes_nothing() -> None:
    driver, one = Driver(drafter=SilentDrafter()), request("a", prompt=10, output=60)
    driver.submit(one)
    assert len(driver.run()) < 40
    assert driver.outputs["a"] == alone(one)


def speculating(**more: object) -> Driver:
    return Driver(drafter=KnowingDrafter(errors=0.0), **more)  # type: ignore[arg-type]


def test_right_drafts_save_steps_and_change_nothing() -> None:
    driver, one = speculating(), request("a", prompt=10, output=60)
    driver.submit(one)
    steps = driver.run()
    assert driver.outputs["a"] == alone(one)
    assert len(steps) < 30
    assert driver.ledger.num_used == 0


@pytest.mark.parametrize("output", range(1, 9))
def test_nothing_is_drafted_beyond_the_last_token(output: int) -> None:
    driver, one = speculating(), request("a", output=output)
    driver.submit(one)
    driver.run()
    assert driver.outputs["a"] == alone(one)
    assert driver.backend.num_computed == len(one.tokens) + output - 1


def test_prompts_are_read_without_drafts() -> None:
    driver = speculating(idle=64)
    driver.submit(request("a", prompt=150))
    assert driver.run()[:3] == [{"a": 64}, {"a": 64}, {"a": 22}]


def test_nobody_is_released_for_a_draft() -> None:
    driver = speculating(kv_tokens=256)
    requests = [request(name, prompt=100, output=28, priority=Priority.BATCH) for name in "ab"]
    driver.submit(*requests)
    driver.run()
    assert driver.scheduler.num_preemptions == 0
    assert [driver.outputs[one.id] for one in requests] == [alone(one) for one in requests]


def test_an_interrupted_draft_is_given_back() -> None:
    driver, one = speculating(), request("a", prompt=15, output=40)
    driver.submit(one)
    driver.step()
    for _ in range(20):
        driver.step(interrupt=True)
        assert driver.ledger.num_used <= 1 + driver.ledger.blocks_for(len(one.tokens))
    driver.run()
    assert driver.outputs["a"] == alone(one)
