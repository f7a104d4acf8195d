"""Which questions are the same, and which differ by their last turn alone."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.answers.store import AnswerKey, LastTurn, exact_key, group_key, turn_key
from openai_cpu_server.contract.request import Constraint, Priority, Sampling
from tests.answers.questions import AROUND, ASKER, question, request


def asked_by(**fields: object) -> AnswerKey:
    return question(text="hi", scope=msgspec.structs.replace(ASKER, **fields))


OTHER_ASKERS = [
    asked_by(holder="bob"),
    asked_by(model="changed file"),
    asked_by(kv_type="q8_0"),
    asked_by(adapter="poet@1"),
    asked_by(version="2"),
]
OTHER_PARAMETERS = [
    question(request(sampling=Sampling(seed=7, temperature=0, top_p=0.5)), text="hi"),
    question(request(stop=("x",)), text="hi"),
    question(request(constraint=Constraint(grammar="root ::= [a-z]")), text="hi"),
    question(request(show_control_tokens=True), text="hi"),
    question(request(top_logprobs=2), text="hi"),
    question(request(cache_namespace="salt"), text="hi"),
    question(request(), request(1), text="hi"),
]


@pytest.mark.parametrize("other", OTHER_ASKERS + OTHER_PARAMETERS)
def test_whatever_changes_the_answer_changes_both_keys(other: AnswerKey) -> None:
    same = question(text="hi")
    assert exact_key(other) != exact_key(same)
    assert group_key(other, "minilm") != group_key(same, "minilm")


def test_who_waits_how_long_and_for_whom_changes_nothing() -> None:
    other = request(
        id="other/0", priority=Priority.BATCH, client="c", route="cmpl", pin=True, boundaries=(2,)
    )
    assert exact_key(question(other)) == exact_key(question())


def test_greedy_sampling_has_no_seed_and_any_other_has() -> None:
    def key(seed: int, temperature: float) -> str | None:
        return exact_key(question(request(sampling=Sampling(seed=seed, temperature=temperature))))

    assert key(1, 0) == key(2, 0)
    assert key(1, 0.5) != key(2, 0.5)
    assert key(1, 0.5) == key(1, 0.5)


def test_an_answer_that_is_drawn_anew_is_found_by_its_turn_alone() -> None:
    drawn = [
        question(request(sampling=Sampling(seed=seed, temperature=1)), text="hi", is_repeatable=False)
        for seed in (1, 2)
    ]
    assert [exact_key(one) for one in drawn] == [None, None]
    groups = {group_key(one, "minilm") for one in drawn}
    assert len(groups) == 1
    assert groups.pop() != group_key(question(text="hi"), "minilm")


def test_questions_of_a_group_differ_by_their_last_turn_alone() -> None:
    one = question(request(tokens=(1, 2, 4, 3), max_tokens=90), text="hi", asked_tokens=0)
    longer = question(
        request(tokens=(1, 2, 4, 4, 4, 3), boundaries=(1, 6), max_tokens=88), text="hello", asked_tokens=0
    )
    assert exact_key(one) != exact_key(longer)
    assert group_key(one, "minilm") == group_key(longer, "minilm")
    assert group_key(one, "minilm") != group_key(one, "another model")


def test_other_earlier_turns_and_another_limit_make_another_group() -> None:
    one = question(text="hi")
    earlier = msgspec.structs.replace(one, turn=LastTurn("hi", (8, *AROUND)))
    limited = msgspec.structs.replace(one, asked_tokens=4)
    assert len({group_key(each, "minilm") for each in (one, earlier, limited)}) == 3


def test_what_is_no_conversation_has_no_group() -> None:
    assert group_key(question(), "minilm") is None


def test_any_text_has_a_key() -> None:
    assert turn_key("g", LastTurn("\ud800", ())) != turn_key("g", LastTurn("", ()))
