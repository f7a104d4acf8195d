"""The evaluation's result: rows with a value, what it was measured on, and the goal."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from demo_model.evaluation.likeness import Reading
from demo_model.evaluation.marks import Score
from demo_model.evaluation.scoring import CLASSES, FIELDS, PARAGRAPHS, RECALL, TOOL

TOP_1 = "GGUF and PyTorch: same likeliest token"
GOALS = {FIELDS: 0.95, CLASSES: 0.95, TOOL: 0.95, RECALL: 0.95, PARAGRAPHS: 0.80, TOP_1: 0.98}


class Unit(enum.Enum):
    SHARE = "share"
    NUMBER = "number"


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    count: int
    """The number of answers, fields or tokens."""
    unit: Unit = Unit.SHARE

    @property
    def goal(self) -> float | None:
        """The least value that meets the goal."""
        return GOALS.get(self.name)

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "pass" if self.value >= self.goal else "miss"

    @property
    def shown(self) -> str:
        return f"{self.value:.1%}" if self.unit is Unit.SHARE else f"{self.value:.3f}"

    def as_json(self) -> dict[str, object]:
        fields = asdict(self)
        return {**fields, "unit": self.unit.value, "goal": self.goal, "verdict": self.verdict or None}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Row:
        return cls(fields["name"], fields["value"], fields["count"], Unit(fields["unit"]))


def of_scores(scores: Iterable[Score]) -> list[Row]:
    return [Row(score.name, score.share, score.of) for score in scores]


def of_reading(what: str, reading: Reading) -> list[Row]:
    """Rows of perplexities; the PyTorch model's only if it has read, too."""
    both = (("GGUF", reading.perplexity), ("PyTorch", reading.trained_perplexity))
    return [
        Row(f"perplexity, {what}, {who}", found.value, found.num_tokens, Unit.NUMBER)
        for who, found in both
        if found.num_tokens
    ]


def of_likeness(readings: Iterable[Reading]) -> list[Row]:
    found = [reading.likeness for reading in readings if reading.likeness.num_tokens]
    if not found:
        return []
    tokens = sum(one.num_tokens for one in found)
    largest = max(one.largest for one in found)
    return [
        Row(TOP_1, sum(one.num_same for one in found) / tokens, tokens),
        Row("GGUF and PyTorch: largest difference of logits", largest, tokens, Unit.NUMBER),
    ]


def title(evaluation: Mapping[str, object]) -> str:
    """The title of the whole result, as it is written to JSON."""
    return "{model}: {count} held-out examples of each kind, {seconds:.0f} s".format(**evaluation)


def table(rows: Iterable[Row], title: str) -> Table:
    drawn = Table("score", title=title)
    for name in ("value", "of", "goal"):
        drawn.add_column(name, justify="right")
    drawn.add_column("")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:.0%}"
        drawn.add_row(row.name, row.shown, str(row.count), goal, row.verdict)
    return drawn
