"""Tracking of the thoughts in an output, token by token."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.request import ReasoningTracker, Thinking

WITHIN = Thinking(end="</t>")
BEFORE = Thinking(begin="<t>", end="</t>")


def follow(thinking: Thinking) -> ReasoningTracker:
    return ReasoningTracker(thinking.begin, thinking.end, budget=thinking.budget)


def answer(thoughts: ReasoningTracker, pieces: Iterable[bytes]) -> bytes | None:
    """Return the answer in the pieces, or None if it has not begun."""
    text = None
    for piece in pieces:
        text = thoughts.read(piece) if text is None else text + piece
    return text


@pytest.mark.parametrize(
    ("thinking", "pieces", "expected", "num_tokens"),
    [
        (WITHIN, [b"a", b"b</", b"t>c", b"d"], b"cd", 3),
        (WITHIN, [b"a", b"<t>"], None, 2),
        (BEFORE, [b"\n", b"<t", b">a", b"</t>"], b"", 4),
        (BEFORE, [b" ", b"<", b"b", b"c"], b" <bc", 0),
        (BEFORE, [b" "], None, 0),
    ],
)
def test_the_answer_begins_behind_the_mark(
    thinking: Thinking, pieces: list[bytes], expected: bytes | None, num_tokens: int
) -> None:
    thoughts = follow(thinking)
    assert answer(thoughts, pieces) == expected
    assert thoughts.num_tokens == num_tokens


@given(st.sampled_from([WITHIN, BEFORE]), st.text("<t>/ a", max_size=14), st.sets(st.integers(0, 14)))
def test_the_split_into_tokens_changes_nothing(thinking: Thinking, text: str, cuts: set[int]) -> None:
    boundaries = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end].encode() for start, end in pairwise(boundaries)]
    assert answer(follow(thinking), pieces) == answer(follow(thinking), [text.encode()])


def used_up(pieces: list[bytes], *, budget: int, thinking: Thinking = WITHIN) -> int | None:
    """Return the number of tokens that use up the budget, or None if they do not."""
    thoughts = ReasoningTracker(thinking.begin, thinking.end, budget=budget)
    for index, piece in enumerate([*pieces, b""]):
        if thoughts.is_used_up:
            return index
        if thoughts.read(piece) is not None:
            break
    return None


def test_the_budget_counts_tokens_of_thoughts() -> None:
    assert used_up([b"a"] * 5, budget=3) == 3
    assert used_up([b"a"] * 5, budget=0) == 0
    assert used_up([b"<t>", b"a", b"a"], budget=1, thinking=BEFORE) == 2
    assert used_up([b"a", b"</t>", b"a", b"a"], budget=3) is None
    assert used_up([b"a"] * 5, budget=0, thinking=BEFORE) is None


def test_the_budget_ends_with_a_whole_character() -> None:
    euro = [bytes([byte]) for byte in "€".encode()]
    assert used_up([b"a", *euro, b"a"], budget=2) == 4
    assert used_up([b"\xe2"] * 9, budget=2) == 5


def test_a_copy_is_independent() -> None:
    thoughts = follow(WITHIN)
    thoughts.read(b"</")
    assert copy(thoughts).read(b"t>") == b""
    assert thoughts.read(b"x") is None
