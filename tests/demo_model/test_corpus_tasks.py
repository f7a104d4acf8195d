"""Reading tasks and tools: what is asked for can be answered from the prompt, and held-out values are new."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import cast

import jsonschema
import pytest
from demo_model.corpus import classification, extraction, paragraphs, recall, task_words, tools, words
from demo_model.corpus.example import Example, Maker, Role, Split
from demo_model.corpus.extraction.reviews import VERDICTS
from demo_model.corpus.tools.lookups import worked_out
from demo_model.corpus.tools.use import name_of

MODULES = (paragraphs, extraction, classification, tools, recall)
MAKERS: dict[str, Maker] = {kind: maker for module in MODULES for kind, maker in module.MAKERS.items()}
EXTRACTIONS = sorted(extraction.MAKERS)
CLASSIFICATIONS = sorted(classification.MAKERS)
KINDS = sorted(MAKERS)
SPLITS = list(Split)

Json = dict[str, object]


def draws(kind: str, split: Split, count: int) -> list[Example]:
    return [MAKERS[kind](random.Random(f"{kind}/{seed}"), split) for seed in range(count)]


def chats(kind: str, split: Split, count: int = 300) -> list[Example]:
    return [example for example in draws(kind, split, count) if example.text is None]


def prompt(example: Example) -> str:
    """All that is read before the last answer."""
    return "\n".join(turn.text for turn in example.turns[:-1])


def answer(example: Example) -> str:
    return example.turns[-1].text


def whole(example: Example) -> str:
    calls = [json.dumps([call.name, dict(call.arguments)]) for turn in example.turns for call in turn.calls]
    tools_offered = json.dumps(example.tools)
    return "\n".join([example.text or "", *(turn.text for turn in example.turns), *calls, tools_offered])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_generator_state_writes_the_same_example(kind: str) -> None:
    assert draws(kind, Split.TRAIN, 40) == draws(kind, Split.TRAIN, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_hardly_ever_repeat(kind: str) -> None:
    written = {whole(example) for example in draws(kind, Split.TRAIN, 2000)}
    assert len(written) >= 1960


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_ends_with_the_assistant_and_leaves_no_placeholder(kind: str, split: Split) -> None:
    for example in chats(kind, split):
        assert example.kind == kind
        assert example.turns[-1].role is Role.ASSISTANT
        assert example.expected
        assert not re.search(r"\{\w*\}|\[\w+\||\|\w+\]|  ", prompt(example))
        assert all(turn.text or turn.calls for turn in example.turns)


NAME_LISTS = (words.GIRLS, words.BOYS, words.SURNAMES, words.CITIES)


def only_held_out() -> set[str]:
    """Names of the held-out parts that stand on no other list: Sofia is a city too, and Gray a color."""
    kept = {name for names in NAME_LISTS for name in words.part(names, Split.HELD_OUT)}
    other = {name for names in NAME_LISTS for name in words.part(names, Split.TRAIN)}
    plain = {word.capitalize() for word in (*task_words.STREETS, *words.COLORS, *words.MONTHS)}
    return kept - other - plain


@pytest.mark.parametrize("kind", ["paragraph_qa", "extract_contact", "tool_call", "recall"])
def test_names_of_held_out_examples_never_stand_in_training(kind: str) -> None:
    kept = only_held_out()
    seen = {
        word
        for example in draws(kind, Split.TRAIN, 2000)
        for word in re.findall(r"[A-Z][a-z]+", whole(example))
    }
    new = {
        word
        for example in draws(kind, Split.HELD_OUT, 300)
        for word in re.findall(r"[A-Z][a-z]+", whole(example))
    }
    assert len(kept & new) >= 20
    assert not kept & seen


@pytest.mark.parametrize("split", SPLITS)
def test_invented_words_belong_to_one_split(split: Split) -> None:
    other = Split.TRAIN if split is Split.HELD_OUT else Split.HELD_OUT
    rng = random.Random(1)
    made = {task_words.invented(rng, split) for _ in range(2000)}
    assert made.isdisjoint({task_words.invented(rng, other) for _ in range(2000)})


@pytest.mark.parametrize("split", SPLITS)
def test_the_answer_about_a_paragraph_stands_in_it_or_is_a_plain_yes_no_or_unknown(split: Split) -> None:
    for example in chats("paragraph_qa", split, 600):
        key = str(example.expected["answer"])
        assert key in answer(example)
        assert key in ("Yes", "No", "does not say") or key.lower() in prompt(example).lower()


def test_some_paragraphs_come_as_plain_text_for_training_only() -> None:
    assert any(example.text for example in draws("paragraph_qa", Split.TRAIN, 300))
    assert not any(example.text for example in draws("paragraph_qa", Split.HELD_OUT, 300))


def test_all_kinds_of_paragraph_answers_occur() -> None:
    keys = [str(example.expected["answer"]) for example in chats("paragraph_qa", Split.TRAIN, 600)]
    assert all(keys.count(key) >= 10 for key in ("Yes", "No", "does not say"))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", EXTRACTIONS)
def test_extracted_json_is_the_expected_and_copied_from_the_prompt(kind: str, split: Split) -> None:
    for example in chats(kind, split):
        expected = cast(Json, example.expected["json"])
        written = json.dumps(expected, separators=(",", ":"), ensure_ascii=False)
        assert answer(example) == written
        for key, value in expected.items():
            if key not in ("summary", "rating"):
                assert_copied(value, prompt(example))


def assert_copied(value: object, text: str) -> None:
    if isinstance(value, list):
        for part in value:
            assert_copied(part, text)
    elif isinstance(value, dict):
        assert_copied(value["name"], text)
        assert_number(value["quantity"], text)
    elif value is not None:
        assert str(value) in text


def assert_number(number: int, text: str) -> None:
    spelled = task_words.SMALL[number] if number < len(task_words.SMALL) else str(number)
    assert re.search(rf"\b({number}|{spelled})\b", text, re.IGNORECASE)


@pytest.mark.parametrize("split", SPLITS)
def test_ratings_are_in_range_and_the_summary_follows_from_the_rest(split: Split) -> None:
    ratings = set()
    for example in chats("extract_review", split, 600):
        expected = cast(Json, example.expected["json"])
        if "rating" in expected:
            ratings.add(expected["rating"])
        if {"rating", "pros", "cons", "summary"} <= set(expected):
            pros, cons = cast(list[str], expected["pros"]), cast(list[str], expected["cons"])
            summary = str(expected["summary"])
            assert summary.startswith(VERDICTS[cast(int, expected["rating"])])
            assert summary.endswith(", but ".join([*pros[:1], *cons[:1]]) + ".")
    assert ratings == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", CLASSIFICATIONS)
def test_the_label_is_one_of_those_in_the_prompt(kind: str, split: Split) -> None:
    forms = set()
    for example in chats(kind, split):
        forms.add(next(iter(example.expected)))
        if "json" in example.expected:
            expected = cast(Json, example.expected["json"])
            assert json.loads(answer(example)) == expected
            (key, label), *rest = expected.items()
            assert not rest
            assert key in prompt(example)
        else:
            label = example.expected["answer"]
            assert answer(example) == label
        assert re.search(rf"\b{label}\b", prompt(example))
    assert forms == {"json", "answer"}


def calls_of(example: Example) -> list[Json]:
    return [
        {"name": call.name, "arguments": dict(call.arguments)}
        for turn in example.turns
        for call in turn.calls
    ]


def parameters(example: Example) -> dict[str, Mapping[str, object]]:
    functions = [cast(Mapping[str, object], tool["function"]) for tool in example.tools]
    return {str(one["name"]): cast(Mapping[str, object], one["parameters"]) for one in functions}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["tool_call", "tool_result"])
def test_calls_fit_the_schema_of_an_offered_tool(kind: str, split: Split) -> None:
    for example in chats(kind, split):
        schemas = parameters(example)
        assert 1 <= len(example.tools) <= 5
        assert len(schemas) == len(example.tools)
        assert calls_of(example)
        for call in calls_of(example):
            jsonschema.validate(call["arguments"], schemas[str(call["name"])])


@pytest.mark.parametrize("split", SPLITS)
def test_the_last_turn_makes_the_expected_calls_with_arguments_from_the_request(split: Split) -> None:
    numbers_of_calls = set()
    for example in chats("tool_call", split):
        expected = cast(list[Json], example.expected["calls"])
        assert expected == calls_of(example)[-len(expected) :]
        assert not example.turns[-1].text
        numbers_of_calls.add(len(expected))
        request = example.turns[-2].text
        for call in expected:
            for value in cast(Json, call["arguments"]).values():
                assert str(value) in spoken_as_signs(request)
    assert numbers_of_calls == {1, 2}


def spoken_as_signs(request: str) -> str:
    """As the calculator's expressions are written, next to the request itself."""
    signs = request.replace(" plus ", " + ").replace(" minus ", " - ").replace(" times ", " * ")
    return f"{request}\n{signs}"


@pytest.mark.parametrize("split", SPLITS)
def test_answers_to_results_say_what_the_tools_returned(split: Split) -> None:
    for example in chats("tool_result", split):
        results = [turn.text for turn in example.turns if turn.role is Role.TOOL]
        assert len(results) == len(calls_of(example))
        assert all(json.loads(result) is not None for result in results)
        read = prompt(example)
        for text in cast(list[str], example.expected["contains"]):
            assert text in answer(example)
            assert text in read or text == "nothing"


@pytest.mark.parametrize("split", SPLITS)
def test_no_call_is_made_where_none_is_needed(split: Split) -> None:
    refused = 0
    for example in chats("tool_none", split):
        assert example.tools
        assert not calls_of(example)
        assert example.expected == {"calls": []}
        refused += "no tool" in answer(example)
    assert 40 <= refused <= 160


def test_names_of_offered_tools_differ_and_their_order_varies() -> None:
    first = {name_of(example.tools[0]) for example in chats("tool_call", Split.TRAIN)}
    assert len(first) >= 40


def test_calculations_are_right() -> None:
    assert worked_out([2, 3, 4], ["+", "*"]) == 14
    assert worked_out([9, 4, 3], ["-", "-"]) == 2
    assert worked_out([2, 3, 4], ["*", "-"]) == 2


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_recalled_was_told_by_the_user_or_the_system(split: Split) -> None:
    for example in chats("recall", split):
        value = str(example.expected["answer"])
        told = [turn.text for turn in example.turns[:-2] if turn.role in (Role.USER, Role.SYSTEM)]
        assert any(value in text for text in told)
        assert value in answer(example)
        assert value not in example.turns[-2].text
