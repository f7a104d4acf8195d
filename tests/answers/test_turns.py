"""Which turns are compared at all, and how similar they are."""

from __future__ import annotations

import pytest

from openai_cpu_server.answers.store import direction, marks_of, nearest_turns


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
def test_other_words_leave_the_marks_as_they_are(one: str, other: str) -> None:
    assert marks_of(one) == marks_of(other)


def row(*numbers: float) -> bytes:
    found = direction(numbers)
    assert found is not None
    return found


def test_the_most_similar_come_first_and_others_not_at_all() -> None:
    rows = [("far", row(0, 1)), ("near", row(1, 0.1)), ("same", row(2, 0)), ("opposite", row(-1, 0))]
    found = nearest_turns(rows, row(1, 0), at_least=0.9)
    assert [near.key for near in found] == ["same", "near"]
    assert found[0].similarity == pytest.approx(1)


def test_rows_of_another_length_are_none() -> None:
    assert nearest_turns([("a", row(1, 0, 0)), ("b", b"x")], row(1, 0), at_least=-1) == []
    assert nearest_turns([], row(1, 0), at_least=-1) == []


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_what_points_nowhere_has_no_direction(numbers: tuple[float, ...]) -> None:
    assert direction(numbers) is None
