"""Percentiles, and what several rounds come to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest ranks. Raises ValueError for no values or a percent outside 0..100."""
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
    """One figure, measured once a round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median; 0 for a median of 0."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else 0.0


def ratio(above: Rounds, below: Rounds) -> float:
    """Of the medians; infinite over 0."""
    return above.median / below.median if below.median else math.inf
