"""A draft is what came after the place that reads most like the end; of equals, after the latest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.drafts import MIN_MATCH, LookupDrafter, LookupGuess, PromptLookup

END = 9


def foreseen(tokens: list[int], limit: int = 4) -> list[int]:
    lookup = PromptLookup()
    lookup.follow(tokens)
    return lookup.foreseen(limit)


FORESEEN = {
    "what stood behind the same tokens": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7]),
    "too short a match says nothing": ([1, 2, 3, 4, 9, 3], []),
    "nor do two tokens": ([1, 2], []),
    "the longest match wins": ([7, 1, 2, 3, 5, 1, 2, 3, 6, 7, 1, 2, 3], [5]),
    "of equals the latest": ([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3], [6]),
    "what repeats itself goes on": ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1]),
    "a single token too": ([4, 4, 4, 4], [4, 4, 4]),
    "tokens whose bytes overlap are no match": ([1 << 8, 2 << 8, 3 << 8, 4 << 8, 5, 1, 2, 3], []),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_what_is_foreseen(name: str) -> None:
    tokens, expected = FORESEEN[name]
    assert foreseen(tokens, len(expected) or 4) == expected


def test_a_place_is_kept_while_it_is_right() -> None:
    lookup, tokens = PromptLookup(), [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert lookup.follow(tokens) == []
    tokens += [4, 5]
    assert lookup.follow(tokens) == [LookupGuess(3, True), LookupGuess(4, True)]
    assert (lookup.foreseen(1), lookup.match) == ([6], 5)
    tokens += [7]
    assert lookup.follow(tokens) == [LookupGuess(5, False)]
    assert lookup.foreseen(1) == []


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_a_place_always_reads_as_the_end_does(tokens: list[int], cuts: list[int]) -> None:
    lookup, known = PromptLookup(), 0
    for cut in [*cuts, 60]:
        known += cut
        guesses = lookup.follow(tokens[:known])
        assert all(guess.match >= MIN_MATCH for guess in guesses)
    (next_one, *_) = [*lookup.foreseen(1), None]
    ends = [i for i in range(MIN_MATCH, len(tokens)) if tokens[i - MIN_MATCH : i] == tokens[-MIN_MATCH:]]
    if next_one is not None:
        assert next_one in {tokens[i] for i in ends}
    if not cuts:
        assert (next_one is not None) == bool(ends)


def sequence(*tokens: int) -> Sequence:
    asked = GenerationRequest(id="a", tokens=tokens, max_tokens=100, sampling=Sampling(seed=0))
    return Sequence(asked, (), (), 0, 0.0)


def test_no_token_that_ends_the_output_is_drafted() -> None:
    drafter = LookupDrafter(frozenset({END}))
    assert drafter.draft(sequence(1, 2, 3, 4, END, 5, 1, 2, 3), 8).tokens == (4,)
    assert drafter.draft(sequence(1, 2, 3, END, 5, 1, 2, 3), 8).tokens == ()


def test_chances_follow_what_came() -> None:
    drafter, quote = LookupDrafter(frozenset()), list(range(100, 200))
    good, bad = sequence(*quote, *quote[:3]), sequence(*quote, *quote[:3])
    at_first = drafter.draft(good, 8)
    assert drafter.draft(bad, 8) == at_first
    assert list(at_first.chances) == sorted(at_first.chances)
    good.tokens += quote[3:60]
    for number in range(10):
        bad.tokens += [500 + number, *quote[:3]]
        drafter.draft(bad, 8)
    assert drafter.draft(good, 8).chances[0] > 0.9
    assert drafter.draft(bad, 8).chances[0] < at_first.chances[0]


def test_a_newcomer_leans_on_what_others_have_seen() -> None:
    drafter, quote = LookupDrafter(frozenset()), list(range(100, 200))
    before = drafter.draft(sequence(*quote, *quote[:3]), 1).chances
    for _ in range(20):
        one = sequence(*quote, *quote[:3])
        drafter.draft(one, 1)
        one.tokens += [7]
        drafter.draft(one, 1)
        drafter.forget(one)
    assert drafter.draft(sequence(*quote, *quote[:3]), 1).chances < before
