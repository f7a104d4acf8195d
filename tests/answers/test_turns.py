"""Comparison of turns: their marks, and their similarity."""

from __future__ import annotations

import pytest

from openai_cpu_server.answers.store import direction, marks_of, nearest_turns
from tests.answers.questions import direction_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is it safe to eat?", "Is it not safe to eat?"),
        ("Can I take it?", "Can't I take it?"),
        ("Can I take it?", "Can’t I take it?"),
        ("With sugar?", "Without sugar?"),
        ("What is 2 plus 2?", "What is 2 plus 3?"),
        ("From 2 to 3?", "From 3 to 2?"),
        ("What is 1.5?", "What is 15?"),
        ("What happened on 2023-04-01?", "What happened on 2023-01-04?"),
        ("What does the US say?", "What does the us say?"),
    ],
)
def test_turns_of_other_marks_are_never_compared(one: str, other: str) -> None:
    assert marks_of(one) != marks_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("How do I reset my password?", "how can I reset a password"),
        ("It isn't 5 o'clock, is it?", "It is not 5 o'clock, is it?"),
        ("What is the capital of France?", "what's the capital of france"),
        ("Know the notes", "Now the nodes"),
    ],
)
def test_other_words_do_not_change_the_marks(one: str, other: str) -> None:
    assert marks_of(one) == marks_of(other)


def test_only_similar_turns_are_returned_best_first() -> None:
    rows = [
        ("far", direction_of(0, 1)),
        ("near", direction_of(1, 0.1)),
        ("same", direction_of(2, 0)),
        ("opposite", direction_of(-1, 0)),
    ]
    found = nearest_turns(rows, direction_of(1, 0), at_least=0.9)
    assert [near.key for near in found] == ["same", "near"]
    assert found[0].similarity == pytest.approx(1)


def test_rows_of_another_length_are_ignored() -> None:
    assert nearest_turns([("a", direction_of(1, 0, 0)), ("b", b"x")], direction_of(1, 0), at_least=-1) == []
    assert nearest_turns([], direction_of(1, 0), at_least=-1) == []


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_a_zero_or_infinite_vector_has_no_direction(numbers: tuple[float, ...]) -> None:
    assert direction(numbers) is None
