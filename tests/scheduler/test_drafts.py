"""Drafts by lookup, and the comparison of steps with and without drafts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.drafts import MIN_MATCH, LookupDrafter, LookupGuess, PromptLookup
from openai_cpu_server.scheduler.speculation.speculator import ComparedStep, DraftGains, DraftingKind
from tests.scheduler.driver import request

END = 9


def foreseen(tokens: list[int], limit: int = 4) -> list[int]:
    lookup = PromptLookup()
    lookup.follow(tokens)
    return lookup.foreseen(limit)


FORESEEN = {
    "tokens that followed the same tokens": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7]),
    "a match that is too short predicts no token": ([1, 2, 3, 4, 9, 3], []),
    "two tokens predict no token": ([1, 2], []),
    "the longest match wins": ([7, 1, 2, 3, 5, 1, 2, 3, 6, 7, 1, 2, 3], [5]),
    "the latest of equal matches wins": ([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3], [6]),
    "a repeated passage continues": ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1]),
    "a repeated token continues": ([4, 4, 4, 4], [4, 4, 4]),
    "tokens whose bytes overlap do not match": ([1 << 8, 2 << 8, 3 << 8, 4 << 8, 5, 1, 2, 3], []),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_foreseen_tokens(name: str) -> None:
    tokens, expected = FORESEEN[name]
    assert foreseen(tokens, len(expected) or 4) == expected


def test_a_matched_place_stays_while_it_is_right() -> None:
    lookup, tokens = PromptLookup(), [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert lookup.follow(tokens) == []
    tokens += [4, 5]
    assert lookup.follow(tokens) == [LookupGuess(3, True), LookupGuess(4, True)]
    assert (lookup.foreseen(1), lookup.match) == ([6], 5)
    tokens += [7]
    assert lookup.follow(tokens) == [LookupGuess(5, False)]
    assert lookup.foreseen(1) == []


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_the_matched_place_reads_as_the_end_of_the_text(tokens: list[int], cuts: list[int]) -> None:
    lookup, length = PromptLookup(), 0
    for cut in [*cuts, 60]:
        length += cut
        guesses = lookup.follow(tokens[:length])
        assert all(guess.match >= MIN_MATCH for guess in guesses)
    (next_one, *_) = [*lookup.foreseen(1), None]
    ends = [i for i in range(MIN_MATCH, len(tokens)) if tokens[i - MIN_MATCH : i] == tokens[-MIN_MATCH:]]
    if next_one is not None:
        assert next_one in {tokens[i] for i in ends}
    if not cuts:
        assert (next_one is not None) == bool(ends)


def sequence(*tokens: int) -> Sequence:
    return Sequence(request("a", tokens=tokens, output=100), (), (), 0, 0.0)


def test_no_token_that_ends_the_output_is_drafted() -> None:
    drafter = LookupDrafter(frozenset({END}))
    assert drafter.draft(sequence(1, 2, 3, 4, END, 5, 1, 2, 3), 8).tokens == (4,)
    assert drafter.draft(sequence(1, 2, 3, END, 5, 1, 2, 3), 8).tokens == ()


def test_chances_follow_the_outcomes() -> None:
    drafter, quote = LookupDrafter(frozenset()), list(range(100, 200))
    good, bad = sequence(*quote, *quote[:3]), sequence(*quote, *quote[:3])
    initial = drafter.draft(good, 8)
    assert drafter.draft(bad, 8) == initial
    assert list(initial.chances) == sorted(initial.chances)
    good.tokens += quote[3:60]
    for number in range(10):
        bad.tokens += [500 + number, *quote[:3]]
        drafter.draft(bad, 8)
    assert drafter.draft(good, 8).chances[0] > 0.9
    assert drafter.draft(bad, 8).chances[0] < initial.chances[0]


def test_a_new_sequence_begins_with_the_chances_of_others() -> None:
    drafter, quote = LookupDrafter(frozenset()), list(range(100, 200))
    before = drafter.draft(sequence(*quote, *quote[:3]), 1).chances
    for _ in range(20):
        one = sequence(*quote, *quote[:3])
        drafter.draft(one, 1)
        one.tokens += [7]
        drafter.draft(one, 1)
        drafter.forget(one)
    assert drafter.draft(sequence(*quote, *quote[:3]), 1).chances < before


QUOTES, BY_MODEL = DraftingKind.of(1, uses_model=False), DraftingKind.of(1, uses_model=True)


def step(
    elapsed_ms: float, accepted: int = 0, *, plain_ms: float = 10.0, predicted_ms: float = 20.0
) -> ComparedStep:
    return ComparedStep(1, accepted, plain_ms, predicted_ms, elapsed_ms)


def learn(gains: DraftGains, kind: DraftingKind, *steps: ComparedStep, times: int = 1) -> int:
    for number in range(times):
        for done in steps:
            if not gains.allows(kind):
                return number
            gains.learn(kind, done)
            gains.pass_time(done.elapsed_ms)
    return times


def test_drafts_that_gain_continue_and_one_large_gain_makes_up_for_many_small_losses() -> None:
    """The sum of the times counts, not the number of gains and losses."""
    gains = DraftGains()
    win, loss = step(20.0, 11), step(20.0)
    assert learn(gains, QUOTES, step(20.0, 1), times=500) == 500
    assert learn(gains, QUOTES, win, *[loss] * 4, times=100) == 100
    assert learn(gains, BY_MODEL, win, *[loss] * 15, times=100) < 100


def test_drafts_that_lose_pause_after_a_trial_longer_each_time() -> None:
    gains, pauses = DraftGains(), []
    for _ in range(8):
        assert learn(gains, QUOTES, step(11.0), times=100) == 32
        pause = 0
        while not gains.allows(QUOTES):
            gains.pass_time(1000.0)
            pause += 1
        pauses.append(pause)
    assert pauses == [10, 20, 40, 80, 160, 320, 320, 320]


def test_a_clear_loss_ends_its_trial_early_and_a_large_one_pauses_longer() -> None:
    """A pause is a hundred times as long as the loss of its trial, reading of prompts included."""
    for loss_ms, charged_ms, pause_s in ((10.0, 0.0, 10), (1000.0, 0.0, 800), (10.0, 400.0, 48)):
        gains = DraftGains()
        gains.charge(BY_MODEL, charged_ms)
        done = step(10.0 + loss_ms, predicted_ms=10.0 + loss_ms)
        assert learn(gains, BY_MODEL, done, times=100) == 8
        (state,) = gains.states(uses_model=True)
        assert (state.drafts, state.why.startswith("they lost")) == (False, True)
        gains.pass_time(1000.0 * pause_s - done.elapsed_ms - 10.0)
        assert not gains.allows(BY_MODEL)
        gains.pass_time(10_000.0)
        assert gains.allows(BY_MODEL)


def test_a_gain_makes_the_next_pause_short_again() -> None:
    gains = DraftGains()
    for _ in range(3):
        learn(gains, QUOTES, step(20.0), times=32)
        gains.pass_time(10**6)
    learn(gains, QUOTES, step(10.0, 1), times=100)
    learn(gains, QUOTES, step(20.0), times=1000)
    assert not gains.allows(QUOTES)
    gains.pass_time(10_000.0)
    assert gains.allows(QUOTES)


def test_kinds_of_steps_pause_separately() -> None:
    gains = DraftGains()
    learn(gains, BY_MODEL, step(20.0), times=32)
    assert not gains.allows(BY_MODEL)
    assert gains.allows(QUOTES)
    assert gains.allows(DraftingKind.of(2, uses_model=True))
    four, seven, eight = (DraftingKind.of(number, uses_model=True) for number in (4, 7, 8))
    assert four == seven != eight


def test_steps_without_drafts_correct_their_predicted_time() -> None:
    """Drafts are a gain if plain steps turn out slower than predicted."""
    for plain_elapsed_ms, gain in ((10.0, False), (25.0, True)):
        gains = DraftGains()
        for _ in range(20):
            gains.learn_plain(step(plain_elapsed_ms, predicted_ms=10.0))
        assert (learn(gains, QUOTES, step(30.0, 1), times=100) == 100) == gain


def test_a_noisy_neighbour_does_not_decide() -> None:
    assert learn(DraftGains(), QUOTES, *[step(20.0, 2)] * 9, step(5000.0, 2), times=50) == 50
