"""Cosines of turns."""

from __future__ import annotations

import pytest

from openai_cpu_server.answers.store import direction, nearest


def row(*numbers: float) -> bytes:
    found = direction(numbers)
    assert found is not None
    return found


def test_the_most_similar_come_first_and_others_not_at_all() -> None:
    rows = [("far", row(0, 1)), ("near", row(1, 0.1)), ("same", row(2, 0)), ("opposite", row(-1, 0))]
    found = nearest(rows, row(1, 0), at_least=0.9)
    assert [near.key for near in found] == ["same", "near"]
    assert found[0].similarity == pytest.approx(1)


def test_rows_of_another_length_are_none() -> None:
    assert nearest([("a", row(1, 0, 0)), ("b", b"x")], row(1, 0), at_least=-1) == []
    assert nearest([], row(1, 0), at_least=-1) == []


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_what_points_nowhere_has_no_direction(numbers: tuple[float, ...]) -> None:
    assert direction(numbers) is None
