"""A scorer for each kind of example: the answer's text against what the corpus expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from demo_model.chat import TOOL_CALL
from demo_model.corpus.example import Example
from demo_model.corpus.lists import CATEGORIES
from demo_model.evaluation.marks import Mark, mark
from demo_model.evaluation.story_checks import score_story
from demo_model.evaluation.texts import holds, last_number, parsed, same_json, words

Scorer = Callable[[Example, str], list[Mark]]
"""Scores the text of the answer to an example."""

FIELDS, CLASSES, TOOL = "extraction: fields exact", "classification: all", "tools: right tool"
RECALL, PARAGRAPHS = "recall over several turns", "paragraph questions"
_YES_OR_NO = ("Yes", "No")


def score_extraction(example: Example, answer: str) -> list[Mark]:
    """Score the fields. Additional fields count as wrong."""
    wanted = _mapping(example.expected["json"])
    found = parsed(answer)
    given = found if isinstance(found, dict) else {}
    keys = [*wanted, *(key for key in given if key not in wanted)]
    right = sum(key in given and key in wanted and same_json(given[key], wanted[key]) for key in keys)
    return [
        Mark(FIELDS, right, len(keys)),
        mark("extraction: answers that are JSON", found is not None),
        mark("extraction: whole answers exact", same_json(found, wanted)),
        Mark(f"extraction: fields of {_noun(example)}s", right, len(keys)),
    ]


def score_class(example: Example, answer: str) -> list[Mark]:
    if "json" in example.expected:
        is_right = same_json(parsed(answer), example.expected["json"])
    else:
        is_right = answer.strip() == example.expected["answer"]
    return [mark(CLASSES, is_right), mark(f"classification: {_noun(example)}", is_right)]


def score_call(example: Example, answer: str) -> list[Mark]:
    wanted = [_mapping(call) for call in _sequence(example.expected["calls"])]
    given = calls_of(answer)
    names = [call.get("name") for call in given]
    return [
        mark(TOOL, names == [call["name"] for call in wanted]),
        mark("tools: right tool and all arguments", same_json(given, wanted)),
    ]


def score_no_call(example: Example, answer: str) -> list[Mark]:
    return [mark("tools: none where none fits", TOOL_CALL not in answer and bool(answer.strip()))]


def score_count_or_list(example: Example, answer: str) -> list[Mark]:
    if "category" in example.expected:
        return [mark(example.kind, _are_members(answer, example.expected))]
    return [mark(example.kind, holds(answer, str(example.expected["answer"])))]


def score_paragraph(example: Example, answer: str) -> list[Mark]:
    key = str(example.expected["answer"])
    is_right = words(answer)[:1] == words(key) if key in _YES_OR_NO else holds(answer, key)
    return [mark(PARAGRAPHS, is_right)]


def score_sum(example: Example, answer: str) -> list[Mark]:
    return [mark("arithmetic", last_number(answer) == example.expected["answer"])]


def score_recall(example: Example, answer: str) -> list[Mark]:
    return [mark(RECALL, holds(answer, str(example.expected["answer"])))]


def score_exact(example: Example, answer: str) -> list[Mark]:
    return [mark(example.kind, answer.strip() == example.expected["answer"])]


def score_fact(example: Example, answer: str) -> list[Mark]:
    """Score the words in any order: "The capital of X is Y." and "Y is the capital of X." are the same."""
    return [mark("facts", sorted(words(answer)) == sorted(words(str(example.expected["answer"]))))]


def score_contents(example: Example, answer: str) -> list[Mark]:
    wanted = _sequence(example.expected["contains"])
    return [mark(_CONTENTS[example.kind], all(holds(answer, str(text)) for text in wanted))]


def calls_of(answer: str) -> list[Mapping[str, object]]:
    """The calls that a server would take from the answer; [] if any of them cannot be read."""
    _, marker, written = answer.partition(TOOL_CALL)
    found = [parsed(line) for line in written.strip().split("\n")] if marker else []
    calls = [call for call in found if isinstance(call, dict)]
    return calls if len(calls) == len(found) else []


def _are_members(answer: str, expected: Mapping[str, object]) -> bool:
    """Whether these are as many different members of the category as asked for, and nothing else."""
    category = {word.lower() for word in CATEGORIES[str(expected["category"])]}
    parts = re.split(r",|\n|\band\b", answer.lower())
    named = [re.sub(r"^(\d+\.|-)\s*", "", part.strip()).strip(" .") for part in parts]
    members = [name for name in named if name]
    return len(members) == len(set(members)) == expected["count"] and category.issuperset(members)


def _noun(example: Example) -> str:
    """The noun in a kind's name: `review` in extract_review."""
    return example.kind.partition("_")[2]


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _sequence(value: object) -> Sequence[object]:
    assert isinstance(value, Sequence)
    return value


_CONTENTS = {
    "tool_result": "tools: answer uses the result",
    "smalltalk": "small talk: the name told",
    "identity": "identity",
    "refusal": "refusals",
}
SCORERS: dict[str, Scorer] = {
    **dict.fromkeys(
        ("extract_review", "extract_contact", "extract_event", "extract_order"), score_extraction
    ),
    **dict.fromkeys(("classify_sentiment", "classify_topic", "classify_language"), score_class),
    "tool_call": score_call,
    "tool_none": score_no_call,
    "tool_result": score_contents,
    "recall": score_recall,
    "paragraph_qa": score_paragraph,
    "arithmetic": score_sum,
    "counting": score_count_or_list,
    "lists": score_count_or_list,
    "transform": score_exact,
    "facts": score_fact,
    "identity": score_contents,
    "refusal": score_contents,
    "smalltalk": score_contents,
    "stories": score_story,
}
"""The scorers by kind, in the order of the table."""
