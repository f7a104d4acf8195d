"""What must agree before two turns are compared at all."""

from __future__ import annotations

import pytest

from openai_cpu_server.answers.store import marks_of


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
