"""Keys of questions: equal questions, and those that differ only in their last turn."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.answers.store import AnswerKey, LastTurn, exact_key, group_key, turn_key
from openai_cpu_server.contract.request import Constraint, Priority, Sampling
from tests.answers.questions import EARLIER, SCOPE, question, request


def question_of(**fields: object) -> AnswerKey:
    return question(text="hi", scope=msgspec.structs.replace(SCOPE, **fields))


OTHER_SCOPES = [
    question_of(holder="bob"),
    question_of(model="changed file"),
    question_of(kv_type="q8_0"),
    question_of(adapter="poet@1"),
    question_of(version="2"),
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


@pytest.mark.parametrize("other", OTHER_SCOPES + OTHER_PARAMETERS)
def test_every_parameter_of_the_answer_changes_both_keys(other: AnswerKey) -> None:
    same = question(text="hi")
    assert exact_key(other) != exact_key(same)
    assert group_key(other, "minilm") != group_key(same, "minilm")


def test_ids_priority_and_route_do_not_change_the_key() -> None:
    other = request(
        id="other/0", priority=Priority.BATCH, client="c", route="cmpl", pin=True, boundaries=(2,)
    )
    assert exact_key(question(other)) == exact_key(question())


def test_the_seed_counts_except_for_greedy_sampling() -> None:
    def key(seed: int, temperature: float) -> str | None:
        return exact_key(question(request(sampling=Sampling(seed=seed, temperature=temperature))))

    assert key(1, 0) == key(2, 0)
    assert key(1, 0.5) != key(2, 0.5)
    assert key(1, 0.5) == key(1, 0.5)


def test_a_randomly_sampled_answer_is_found_by_its_turn_only() -> None:
    drawn = [
        question(request(sampling=Sampling(seed=seed, temperature=1)), text="hi", is_repeatable=False)
        for seed in (1, 2)
    ]
    assert [exact_key(one) for one in drawn] == [None, None]
    groups = {group_key(one, "minilm") for one in drawn}
    assert len(groups) == 1
    assert groups.pop() != group_key(question(text="hi"), "minilm")


def test_questions_of_a_group_differ_in_their_last_turn_only() -> None:
    one = question(request(tokens=(1, 2, 4, 3), max_tokens=90), text="hi", output_limit=0)
    longer = question(
        request(tokens=(1, 2, 4, 4, 4, 3), boundaries=(1, 6), max_tokens=88), text="hello", output_limit=0
    )
    assert exact_key(one) != exact_key(longer)
    assert group_key(one, "minilm") == group_key(longer, "minilm")
    assert group_key(one, "minilm") != group_key(one, "another model")


def test_other_earlier_turns_and_another_limit_make_another_group() -> None:
    one = question(text="hi")
    earlier = msgspec.structs.replace(one, turn=LastTurn("hi", (8, *EARLIER)))
    limited = msgspec.structs.replace(one, output_limit=4)
    assert len({group_key(each, "minilm") for each in (one, earlier, limited)}) == 3


def test_a_question_without_a_conversation_has_no_group() -> None:
    assert group_key(question(), "minilm") is None


def test_any_text_has_a_key() -> None:
    assert turn_key("g", LastTurn("\ud800", ())) != turn_key("g", LastTurn("", ()))
