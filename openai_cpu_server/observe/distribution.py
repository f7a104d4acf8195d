"""Counts seconds by size. It is cheap to add to, exact at Prometheus' bounds, and fine between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise

BOUNDS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
)
"""Upper bounds of the buckets. A CPU takes milliseconds for a token and minutes for a long prompt."""
_PARTS = 8
"""The parts of each bucket, for quantiles."""
_LOWEST_S = 0.0001


def _fine(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (part / _PARTS) for part in range(1, _PARTS)] + [high]


_FINE_S = tuple(bound for low, high in pairwise((_LOWEST_S, *BOUNDS_S)) for bound in _fine(low, high))


class Distribution:
    """Counts durations. It is not thread-safe."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts: dict[int, int] = {}
        """The counts by index of the fine bucket.
        The bucket behind the last bound takes everything larger."""

    def add(self, seconds: float, count: int = 1) -> None:
        index = bisect_left(_FINE_S, seconds)
        self._counts[index] = self._counts.get(index, 0) + count
        self.sum_s += seconds * count

    def merge(self, other: Distribution) -> None:
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.sum_s += other.sum_s

    @property
    def num(self) -> int:
        return sum(self._counts.values())

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.num if self._counts else None

    def quantile_s(self, share: float) -> float | None:
        """A quantile in seconds; None if empty.
        It is at most a third off, usually far less. Larger values count as the last bound."""
        wanted = share * self.num
        below = 0
        for index, count in sorted(self._counts.items()):
            if below + count >= wanted:
                return _between(index, (wanted - below) / count)
            below += count
        return None

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """The (upper bound, how many are not above it) for each of `BOUNDS_S`."""
        entries = sorted(self._counts.items())
        below, position = 0, 0
        for number, bound in enumerate(BOUNDS_S, start=1):
            while position < len(entries) and entries[position][0] < number * _PARTS:
                below += entries[position][1]
                position += 1
            yield bound, below


def _between(index: int, share: float) -> float:
    """The value at this share of the fine bucket."""
    if index == len(_FINE_S):
        return _FINE_S[-1]
    low = _FINE_S[index - 1] if index else 0.0
    return low + share * (_FINE_S[index] - low)
