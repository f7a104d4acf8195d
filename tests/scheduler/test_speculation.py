"""Stories about drafts, which are computed where they pay and leave no cells behind."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import Drafted, Span, Step, StepResult
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.plan import StepCapacity, StepPlan, StepPrices, StepReason
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.drafts import ModelDrafter, SequenceDraft
from openai_cpu_server.scheduler.speculation.speculator import Speculator, choose_lengths
from tests.scheduler.driver import Driver, KnowingDrafter, SilentDrafter, TokenCost, request

REPACKED = ((1, 20), (8, 124), (12, 160), (16, 149), (17, 190), (32, 297), (64, 543), (128, 1031))
PLAIN = ((1, 26), (8, 134), (12, 140), (16, 142), (17, 205), (32, 206), (64, 361), (128, 644))
"""The step times of docs/measurements.md."""
FLAT = tuple((n, 10.0) for n in (1, 256))
Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class PricedPlan:
    plan: StepPlan
    prices: StepPrices

    @property
    def sequences(self) -> list[Sequence]:
        return list(self.plan.parts)

    @property
    def padded_ms(self) -> float:
        return self.prices.padded_ms(self.plan)

    def choose(self, drafts: dict[Sequence, SequenceDraft]) -> dict[Sequence, int]:
        return choose_lengths(self.plan, self.prices, drafts, always=False)


def decode_batch(
    num_decoding: int,
    curve: Curve = PLAIN,
    *,
    attended_ms: float = 0.0,
    outputs: int = 128,
    budget_ms: float = math.inf,
    model_type: type[CostModel] = CostModel,
) -> PricedPlan:
    model = model_type(CostCurve(step_ms=curve, attended_ms=attended_ms))
    step_plan = StepPlan(StepCapacity(256, outputs, outputs), budget_ms)
    for number in range(num_decoding):
        step_plan.add(decoding(str(number), 3), 1, StepReason.DECODE)
    return PricedPlan(step_plan, StepPrices(model, 256))


def decoding(name: str, num_tokens: int) -> Sequence:
    sequence = Sequence(request(name, tokens=(1,) * num_tokens, output=100), (), (), 0, 0.0)
    sequence.computed = num_tokens - 1
    return sequence


def lengths(batch: PricedPlan, *chances: float, tokens: int = 31) -> list[int]:
    drafting = zip(batch.sequences, chances, strict=False)
    drafts = {s: SequenceDraft((7,) * tokens, (chance,) * tokens) for s, chance in drafting}
    chosen = batch.choose(drafts)
    return [chosen.get(sequence, 0) for sequence in drafts]


CHOSEN = {
    "a lone sure quotation drafts whole tiles": (1, PLAIN, [0.99], [31]),
    "a less sure one drafts one tile": (1, REPACKED, [0.93], [15]),
    "a lone guess does not pay": (1, PLAIN, [0.5], [0]),
    "a lone guess does not pay on the other curve": (1, REPACKED, [0.5], [0]),
    "the rest of a tile is free, for the more likely draft first": (10, PLAIN, [0.4, 0.9], [2, 4]),
    "a batch at the bend gets no drafts": (16, PLAIN, [0.3] * 16, [0] * 16),
    "a larger batch gets no drafts": (32, PLAIN, [0.7] * 32, [0] * 32),
    "a batch on the other curve gets no drafts": (16, REPACKED, [0.8] * 16, [0] * 16),
    "a draft that attends to few tokens is cheap": (1, FLAT, [0.9], [31]),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_lengths(name: str) -> None:
    num_decoding, curve, chances, expected = CHOSEN[name]
    assert lengths(decode_batch(num_decoding, curve), *chances) == expected


def test_chosen_tokens_of_a_batch() -> None:
    """The rest of a tile is free, sure quotations gain, and the backend limits the number of drafts."""
    assert sum(lengths(decode_batch(10), *([0.5] * 10))) == 6
    assert sum(lengths(decode_batch(12, REPACKED), *([0.5] * 12))) == 4
    assert sum(lengths(decode_batch(16), *([0.95] * 16))) >= 16
    assert sum(lengths(decode_batch(4, FLAT, outputs=20), *([0.9] * 4))) == 16


def test_a_sequence_that_quotes_does_not_slow_down_the_others() -> None:
    """Alone the sequence would draft 31 tokens. The others' time per token counts as much as its own."""
    batch = decode_batch(3)
    (chosen,) = lengths(batch, 0.99)
    expected = 1 + sum(0.99**i for i in range(1, chosen + 1))
    assert with_drafts(batch, chosen).padded_ms * (2 + 1 / expected) <= batch.padded_ms * 3


def test_long_contexts_make_drafts_dearer() -> None:
    batch = decode_batch(0, FLAT, attended_ms=1.0)
    batch.plan.add(decoding("a", 1000), 1, StepReason.DECODE)
    assert lengths(batch, 0.9) == [0]


CHANCES = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=40)
CURVES = st.sampled_from([PLAIN, REPACKED, FLAT])


@given(CHANCES, st.integers(0, 8), CURVES)
def test_drafts_never_slow_down_a_batch(chances: list[float], num_others: int, curve: Curve) -> None:
    num_sequences = len(chances) + num_others
    batch = decode_batch(num_sequences, curve)
    chosen = lengths(batch, *chances)
    drafted = (
        chance**i for chance, length in zip(chances, chosen, strict=True) for i in range(1, length + 1)
    )
    before = num_sequences / batch.padded_ms
    after = (num_sequences + sum(drafted)) / with_drafts(batch, *chosen).padded_ms
    assert after >= before or math.isclose(after, before)


def with_drafts(batch: PricedPlan, *chosen: int) -> PricedPlan:
    grown = batch.plan.copy()
    for sequence, length in zip(batch.sequences, chosen, strict=False):
        if length:
            grown.add_draft(sequence, length)
    return PricedPlan(grown, batch.prices)


def test_drafts_keep_to_the_budget_of_the_step_except_for_free_tokens() -> None:
    seven_times = tuple((n, 7.0 * ms) for n, ms in PLAIN)
    for curve, budget_ms, length in (
        (PLAIN, 600, 31),
        (PLAIN, 170, 15),
        (PLAIN, 115, 5),
        (seven_times, 130, 0),
    ):
        assert lengths(decode_batch(1, curve, budget_ms=budget_ms), 0.99) == [length]
    assert sum(lengths(decode_batch(12, REPACKED, budget_ms=50.0), *([0.5] * 12))) == 4


@given(CHANCES, CURVES, st.floats(5.0, 900.0))
def test_drafts_exceed_no_budget_by_much(chances: list[float], curve: Curve, budget_ms: float) -> None:
    batch = decode_batch(len(chances), curve, budget_ms=budget_ms)
    grown = with_drafts(batch, *lengths(batch, *chances))
    assert grown.padded_ms <= max(1.3 * budget_ms, batch.padded_ms)


class CountingCost(CostModel):
    num_predictions = 0

    def predict_ms(self, num_tokens: int, attended: int = 0) -> float:
        CountingCost.num_predictions += 1
        return super().predict_ms(num_tokens, attended)


@pytest.mark.parametrize(
    ("num_decoding", "drafts", "most"),
    [
        (16, [SequenceDraft((7,) * 31, (0.95,) * 31)] * 15, 26),  # each choice is weighed once
        (32, [SequenceDraft((7,) * 31, (0.99,) * 31)], 7),  # it would not pay if it were certain
        (32, [SequenceDraft()], 0),
    ],
)
def test_the_cost_model_is_seldom_used(num_decoding: int, drafts: list[SequenceDraft], most: int) -> None:
    batch = decode_batch(num_decoding, model_type=CountingCost)
    CountingCost.num_predictions = 0
    chosen = batch.choose(dict(zip(batch.sequences, drafts, strict=False)))
    assert CountingCost.num_predictions <= most
    assert bool(chosen) == (num_decoding == 16)


@pytest.mark.parametrize("curve", [PLAIN, REPACKED, FLAT])
def test_drafts_that_would_pay_if_they_were_certain_are_weighed(curve: Curve) -> None:
    for num_drafting, num_others, each in itertools.product((1, 2, 4, 8), (0, 1, 5, 12), (1, 2, 4, 8)):
        batch = decode_batch(num_drafting + num_others, curve)
        grown = with_drafts(batch, *[each] * num_drafting)
        steps = (num_others + num_drafting / (1 + each)) / len(batch.sequences)
        if steps * grown.padded_ms < 0.95 * batch.padded_ms:
            assert any(lengths(batch, *[1.0] * num_drafting, tokens=each))


def test_a_long_prompt_is_read_by_the_draft_model_within_the_steps_budgets() -> None:
    speculator = Speculator(SilentDrafter(), ModelDrafter(0.002))
    sequence, num_read, steps = decoding("a", 2000), 0, 0
    while True:
        batch = decode_batch(0, FLAT, budget_ms=13.0)
        batch.plan.add(sequence, 1, StepReason.DECODE)
        chosen = speculator.drafts(batch.plan, batch.prices, {sequence: 50})
        (trained_drafter,) = chosen.spans.values()
        assert 10.0 + chosen.drafting_ms <= 13.0
        if trained_drafter.num_to_draft > 1:
            break
        num_read, steps = num_read + trained_drafter.num_to_read, steps + 1
        speculator.learn({sequence: Drafted(num_read=num_read)}, chosen.drafting_ms)
    assert num_read < 2000 <= num_read + trained_drafter.num_to_read
    assert steps == 4  # 2.84 ms each, at 0.006 for a token


def test_the_draft_model_reads_nothing_where_the_budget_has_no_room() -> None:
    speculator = Speculator(SilentDrafter(), ModelDrafter(0.02))
    batch, sequence = decode_batch(0, FLAT, budget_ms=10.0), decoding("a", 400)
    batch.plan.add(sequence, 1, StepReason.DECODE)
    chosen = speculator.drafts(batch.plan, batch.prices, {sequence: 50})
    assert (chosen.spans, chosen.drafting_ms) == ({}, 0.0)


def test_a_cut_draft_costs_as_much_as_a_short_one() -> None:
    cut, short = decode_batch(3).plan, decode_batch(3).plan
    for plan, length in ((cut, 8), (short, 3)):
        for sequence in list(plan.parts)[:2]:
            plan.add_draft(sequence, length)
    for sequence in list(cut.parts)[:2]:
        cut.drop_draft(sequence, 5)
    for name in ("num_tokens", "attended", "draft_room"):
        assert getattr(cut, name) == getattr(short, name)


def test_times_are_learned_where_a_draft_is_shorter_than_requested() -> None:
    driver = Driver(drafter=SilentDrafter())
    steps = driver.run(request("a", prompt=10, output=60), request("b", prompt=10, output=40))
    learned = [num_tokens for num_tokens, _ in driver.cost.learned]
    assert len(learned) == sum(map(bool, steps))
    assert sum(learned) == driver.backend.num_computed < sum(sum(spans.values()) for spans in steps)


class FlatCost(TokenCost):
    """Cost model that always predicts 10 ms and never learns, so that drafts seem to cost nothing."""

    def predict_ms(self, num_tokens: int, attended: int = 0) -> float:
        return 10.0


def chooser(errors: float, **more: object) -> Driver:
    return Driver(drafter=KnowingDrafter(errors=errors), always=False, **more)  # type: ignore[arg-type]


def drafted_shares(driver: Driver, num_requests: int) -> list[float]:
    shares = []
    for number in range(num_requests):
        steps = driver.run(request(f"r{number}", output=150))[1:]
        shares.append(sum(step[f"r{number}"] > 1 for step in steps if step) / len(steps))
    return shares


def test_drafts_that_gain_continue_and_drafts_that_lose_against_all_predictions_pause() -> None:
    gaining = chooser(0.0, cost=FlatCost(), elapsed_ms=lambda step: 10.0 + step.num_tokens)
    assert min(drafted_shares(gaining, 2)) > 0.7
    losing = chooser(1.0, cost=FlatCost(), elapsed_ms=lambda step: 10.0 if step.num_tokens == 1 else 20.0)
    shares = drafted_shares(losing, 9)
    assert 0.03 < shares[0] < 0.1
    assert shares[1:6] == [0.0] * 5
    assert max(shares[6:]) > 0.03, "drafts are tried again"


def test_a_batch_sequence_drafts_in_longer_steps_than_an_interactive_one() -> None:
    longest = {}
    for priority in Priority:
        driver = chooser(0.0, decoding=9, idle=40, cost=TokenCost(step_ms=9.0))
        steps = driver.run(request("a", output=100, priority=priority))[1:]
        longest[priority] = max(sum(step.values()) for step in steps)
    assert longest[Priority.INTERACTIVE] < longest[Priority.BATCH]


def model_draft(chance: float, token_ms: float, first_ms: float = 0.0) -> SequenceDraft:
    return SequenceDraft(chances=(chance,) * 8, token_ms=token_ms, first_ms=first_ms)


def test_the_cost_of_a_draft_model_counts() -> None:
    """A step of 1 token takes 26 ms and a step of 4 some 72 ms, so 4 tokens pay if drafts are cheap."""
    for token_ms, first_ms, gains in ((0.5, 0.0, True), (10.0, 0.0, False), (0.5, 100.0, False)):
        batch = decode_batch(1)
        assert bool(batch.choose({batch.sequences[0]: model_draft(0.97, token_ms, first_ms)})) == gains


def test_a_dear_draft_does_not_spoil_a_free_one() -> None:
    batch = decode_batch(12, REPACKED)
    one, other, *_ = batch.sequences
    drafts = {one: model_draft(0.99, 50.0), other: SequenceDraft((7,) * 8, (0.9,) * 8)}
    assert set(batch.choose(drafts)) == {other}


def trained_drafter(num_tokens: int, *outcomes: Drafted) -> tuple[ModelDrafter, SequenceDraft]:
    drafter, sequence = ModelDrafter(0.1), decoding("a", num_tokens)
    for outcome in outcomes:
        drafter.draft(sequence, 8, 20.0)
        drafter.learn(sequence, outcome)
        drafter.learn_price({sequence: outcome}, 3.0)
    return drafter, drafter.draft(sequence, 8, 20.0)


def test_a_draft_model_that_is_wrong_pauses() -> None:
    _, initial = trained_drafter(20)
    assert (len(initial.chances), initial.token_ms) == (8, 2.0)
    drafter, draft = trained_drafter(20, *[Drafted(4, 0, num_read=20, num_thought=4)] * 30)
    assert draft.chances[0] < 0.1
    newcomer = decoding("b", 20)
    assert drafter.draft(newcomer, 8, 20.0).chances[0] < 0.2
    for _ in range(20_000):
        drafter.draft(newcomer, 8, 20.0)
    assert drafter.draft(newcomer, 8, 20.0).chances[0] > 0.5


def test_learning_from_drafts_that_are_empty_end_early_or_read_first() -> None:
    """Reading is not a wrong guess. A draft that ends early was wrong about its next token."""
    _, empty = trained_drafter(20, *[Drafted(num_read=20, num_thought=1)] * 30)
    assert empty.chances[0] < 0.1
    assert empty.token_ms == pytest.approx(3.0, rel=0.05)
    for drafted, expected in ((Drafted(1, 1, 20, 2), 0.0), (Drafted(2, 2, 20, 2), 1.0)):
        chances = trained_drafter(20, *[drafted] * 200)[1].chances
        assert chances[:2] == (pytest.approx(1.0, abs=0.1), pytest.approx(expected, abs=0.1))
    _, reading = trained_drafter(2000, *(Drafted(num_read=num_read) for num_read in range(60, 1800, 60)))
    assert reading.chances[0] == pytest.approx(trained_drafter(2000)[1].chances[0], abs=0.01)


def test_the_price_of_a_draft_model_is_learned_from_drafts_without_reading() -> None:
    drafter, sequence = ModelDrafter(0.1), decoding("a", 200)
    outcomes = {sequence: Drafted(4, 0, num_read=200, num_thought=4)}
    reading = drafter.draft(sequence, 8, 20.0)
    assert reading.first_ms > 0
    drafter.learn_price(outcomes, 400.0)
    assert drafter.draft(sequence, 8, 20.0).token_ms == reading.token_ms
    for _ in range(30):
        drafter.learn_price(outcomes, 12.0)
    assert drafter.draft(sequence, 8, 20.0).token_ms == pytest.approx(3.0, rel=0.05)
    assert drafter.draft(sequence, 8, 20.0).first_ms == 0


def test_a_disturbed_call_does_not_end_drafts() -> None:
    """The time of that call would stay the price, because nothing is learned without drafts."""
    drafter, sequence = ModelDrafter(0.1, reads_along=True), decoding("a", 20)
    drafter.draft(sequence, 8, 20.0)
    for ms, most_ms in ((60.0, 3.0), (2.0, 2.7)):
        drafter.learn_price({sequence: Drafted(1, 1, num_thought=1)}, ms)
        assert 2.0 < drafter.draft(sequence, 8, 20.0).token_ms <= most_ms


def test_the_price_of_a_call_for_several_sequences_is_learned() -> None:
    """Sequences draft in the same calls, and each further sequence makes a call a little longer."""
    drafter, sequences = ModelDrafter(0.1, reads_along=True), [decoding(name, 20) for name in "abcd"]
    outcome = Drafted(2, 0, num_thought=2)
    initial = drafter.draft(sequences[0], 8, 20.0, 5.0)
    assert (initial.chances, initial.token_ms, initial.shared_ms) == ((0.8,) * 4, 2.0, 0.5)
    for _ in range(100):
        drafter.learn_price({sequences[0]: outcome}, 8.0)
        drafter.learn_price(dict.fromkeys(sequences, outcome), 14.0)
    draft = drafter.draft(sequences[0], 8, 20.0, 5.0, 4)
    assert (draft.token_ms, draft.shared_ms) == (pytest.approx(4.0, rel=0.05), pytest.approx(1.0, rel=0.05))
    assert draft.num_unread == 0
    for shared_ms, num_drafting in ((1.0, 4), (4.0, 0)):
        batch = decode_batch(4, FLAT)
        drafts = {s: SequenceDraft((), (0.9,), 0.0, 4.0, shared_ms) for s in batch.sequences}
        assert len(batch.choose(drafts)) == num_drafting


@pytest.mark.parametrize("row_ms", [-3.0, 0.0])
def test_no_further_sequence_makes_a_call_shorter(row_ms: float) -> None:
    """The measurement may have found two rows faster than one."""
    drafter, sequences = ModelDrafter(0.1, reads_along=True), [decoding(str(n), 20) for n in range(16)]
    for _ in range(30):
        drafter.draft(sequences[0], 8, 20.0, row_ms, 16)
        drafter.learn_price(dict.fromkeys(sequences, Drafted(2, 1, num_thought=2)), 14.0)
    draft = drafter.draft(sequences[0], 8, 20.0, row_ms, 16)
    assert draft.shared_ms > 0
    assert draft.token_ms + 15 * draft.shared_ms == pytest.approx(7.0, rel=0.05)


def test_calls_for_many_sequences_teach_nothing_about_calls_for_one() -> None:
    drafter, sequences = ModelDrafter(0.1, reads_along=True), [decoding(name, 20) for name in "abcd"]
    for count, ms in ((4, 100.0), (1, 2.0), (4, 100.0)):
        drafter.draft(sequences[0], 8, 20.0, 5.0, count)
        drafter.learn_price(dict.fromkeys(sequences[:count], Drafted(1, 0, num_thought=1)), ms)
    first_ms, many_ms, more_ms = (drafter.draft(sequences[0], 8, 20.0, 5.0, n).token_ms for n in (1, 4, 8))
    assert (first_ms, more_ms) == (2.0, many_ms)
    assert many_ms > 3.5
    drafter.doubt(3)
    assert drafter.draft(sequences[0], 8, 20.0, 5.0, 4).token_ms == 2.0


def test_a_head_that_does_not_pay_does_not_read_along_for_a_while() -> None:
    batch = decode_batch(1, FLAT)
    speculator = Speculator(SilentDrafter(), ModelDrafter(5.0, reads_along=True))
    limits = dict.fromkeys(batch.sequences, 8)
    reads = [speculator.drafts(batch.plan, batch.prices, limits).reads_along for _ in range(80)]
    assert reads == [True] * 64 + [False] * 16
    (state,) = speculator.states()
    assert str(state) == "with 1 sequence: paused, none was predicted to gain time"
    step = Step(spans=(Span(0, 0, (1,), True),))
    speculator.compare(None, step, StepResult(), 10.0, 20_000.0)
    assert speculator.drafts(batch.plan, batch.prices, limits).reads_along


def test_the_first_drafts_of_a_head_are_few_and_short() -> None:
    batch = decode_batch(16, FLAT)
    speculator = Speculator(SilentDrafter(), ModelDrafter(0.01, reads_along=True))
    limits = dict.fromkeys(batch.sequences, 8)
    for _ in range(2):
        first = speculator.drafts(batch.plan, batch.prices, limits).spans
        assert [span.num_to_draft for span in first.values()] == [1] * 4
        speculator.learn({sequence: Drafted(1, 1, 0, 1) for sequence in first}, 1.0)
    then = speculator.drafts(batch.plan, batch.prices, limits).spans
    assert len(then) == 16
    assert max(span.num_to_draft for span in then.values()) > 1


def drafting_driver(**more: object) -> Driver:
    return Driver(drafter=KnowingDrafter(errors=0.0), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("output", range(1, 9))
def test_nothing_is_drafted_beyond_the_last_token(output: int) -> None:
    driver = drafting_driver()
    driver.run(request("a", prompt=4, output=output))
    assert driver.backend.num_computed == 4 + output - 1


def test_prompts_are_read_without_drafts() -> None:
    driver = drafting_driver(idle=64)
    assert driver.run(request("a", prompt=150))[:3] == [{"a": 64}, {"a": 64}, {"a": 22}]


def test_no_sequence_is_preempted_for_a_draft() -> None:
    driver = drafting_driver(kv_tokens=256)
    driver.run(*(request(name, prompt=100, output=28, priority=Priority.BATCH) for name in "ab"))
    assert driver.scheduler.num_preemptions == 0


def test_the_cells_of_an_interrupted_draft_are_freed() -> None:
    driver = drafting_driver()
    driver.step(request("a", prompt=15, output=40))
    for _ in range(20):
        driver.step(interrupt=True)
        assert driver.ledger.num_used == driver.ledger.blocks_for(16)
    driver.run()


OWN_KERNELS = ((1, 40), (2, 43), (4, 52), (8, 75), (16, 120), (32, 160), (64, 280))
"""Step times like those of a model of 1 B with this server's kernels: four rows cost 1.3 times one."""
HEAD = 0.18
"""Time of a head's call, in steps of one token."""
ANSWER = 150


class HeadRun:
    """Sequences that decode in virtual time with a head that is right with the chance `chance`."""

    def __init__(self, num_sequences: int, chance: float) -> None:
        self._random = random.Random(0)
        self._chance = chance
        self._prices = StepPrices(CostModel(CostCurve(step_ms=OWN_KERNELS, attended_ms=0.0)), 256)
        self._speculator = Speculator(SilentDrafter(), ModelDrafter(HEAD, reads_along=True))
        self._left = {decoding(str(number), 5): ANSWER for number in range(num_sequences)}
        self.num_calls = self.num_rows = self.num_tokens = 0
        self.ms = self.plain_ms = 0.0

    def step(self) -> None:
        plan = StepPlan(StepCapacity(256, 256, 256))
        for sequence in self._left:
            plan.add(sequence, 1, StepReason.DECODE)
        chosen = self._speculator.drafts(plan, self._prices, {s: n - 1 for s, n in self._left.items()})
        lengths = {s: chosen.spans[s].num_to_draft if s in chosen.spans else 0 for s in self._left}
        drafted = {s: self._drafted(length) for s, length in lengths.items() if length}
        drafting_ms = self._calls_ms(list(lengths.values()))
        step_ms = self._step_ms(len(lengths) + sum(lengths.values())) + drafting_ms
        self._speculator.learn(drafted, drafting_ms)
        slots = {s: slot for slot, s in enumerate(lengths)}
        spans = tuple(Span(slots[s], 4, (1,), True, num_to_draft=n) for s, n in lengths.items())
        result = StepResult(drafted={slots[s]: one for s, one in drafted.items()}, drafting_ms=drafting_ms)
        self._speculator.compare(chosen.plain_ms, Step(spans=spans), result, step_ms, step_ms)
        gained = {s: 1 + (drafted[s].num_accepted if s in drafted else 0) for s in lengths}
        self.ms += step_ms
        self.plain_ms += self._step_ms(len(lengths)) * sum(gained.values()) / len(lengths)
        self.num_tokens += sum(gained.values())
        self._advance(gained)

    def _drafted(self, length: int) -> Drafted:
        right = itertools.takewhile(lambda _: self._random.random() < self._chance, range(length))
        return Drafted(length, len(list(right)), 0, length)

    def _calls_ms(self, lengths: list[int]) -> float:
        """Return the time of the calls. Another sequence adds the same share as another row to a step."""
        single_ms = self._step_ms(1)
        row_ms = self._step_ms(2) - single_ms
        trained_drafter = [sum(length > place for length in lengths) for place in range(max(lengths))]
        self.num_calls += len(trained_drafter)
        self.num_rows += sum(trained_drafter)
        return HEAD * sum(single_ms + (count - 1) * row_ms for count in trained_drafter)

    def _step_ms(self, num_rows: int) -> float:
        return self._prices.cost.predict_ms(self._prices.padded_size(num_rows))

    def _advance(self, gained: dict[Sequence, int]) -> None:
        for sequence, count in gained.items():
            self._left[sequence] -= count
            if self._left[sequence] <= 0:
                self._speculator.forget(sequence)
                del self._left[sequence]
                self._left[decoding(sequence.request.id, 5)] = ANSWER


@pytest.mark.parametrize("num_sequences", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("chance", [0.0, 0.3])
def test_a_head_that_is_wrong_costs_less_than_3_percent(num_sequences: int, chance: float) -> None:
    run = HeadRun(num_sequences, chance)
    while run.num_tokens < 600 * min(num_sequences, 4):
        run.step()
    assert run.plain_ms / run.ms > 0.97
    assert run.num_rows < 0.06 * run.num_tokens


def test_a_head_that_is_mostly_right_gains() -> None:
    for num_sequences, gain in ((1, 1.35), (2, 1.15)):
        run = HeadRun(num_sequences, 0.8)
        while run.num_tokens < 600:
            run.step()
        assert run.plain_ms / run.ms > gain
