"""A scorer's marks for one answer: how many of its parts are right, by the name of the score."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mark:
    score: str
    right: int
    of: int = 1


@dataclass(frozen=True)
class Score:
    """The share of parts that are right."""

    name: str
    right: int
    of: int

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 0.0


def mark(score: str, is_right: bool) -> Mark:
    return Mark(score, int(is_right))


def added_up(marks: Iterable[Mark]) -> list[Score]:
    """One score for each name, in the order in which they first came."""
    sums: dict[str, Score] = {}
    for one in marks:
        before = sums.get(one.score, Score(one.score, 0, 0))
        sums[one.score] = Score(one.score, before.right + one.right, before.of + one.of)
    return list(sums.values())
