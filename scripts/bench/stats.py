"""Percentiles, and figures of several rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolate linearly between the two nearest ranks. Raises ValueError for no values or a percent
    outside 0..100."""
    if not values:
        raise ValueError("no values, no percentile")
    if not 0 <= percent <= 100:
        raise ValueError(f"{percent} is no percentage")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


class Rounds(msgspec.Struct, frozen=True):
    values: tuple[float, ...]

    @classmethod
    def of(cls, runs: Iterable[T], figure: Callable[[T], float]) -> Rounds:
        return cls(tuple(float(figure(run)) for run in runs))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median, or 0 for a median of 0."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else 0.0


def ratios(above: Rounds, below: Rounds) -> Rounds:
    """Return ratios round by round, because a disturbance affects both, or of the medians if one has more
    rounds. A ratio to 0 is infinite."""
    if len(above.values) != len(below.values):
        return Rounds((_ratio(above.median, below.median),))
    return Rounds(tuple(map(_ratio, above.values, below.values)))


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf
