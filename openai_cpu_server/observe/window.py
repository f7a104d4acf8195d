"""A window of time in slices. Memory and work are bounded, whatever the load."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

S = TypeVar("S")


class SlicedWindow(Generic[S]):
    """What happened in each of the last slices; those in which nothing did are missing.

    `new` makes an empty one. Slices are numbered from `origin_s` on.
    """

    def __init__(
        self, new: Callable[[], S], *, slice_s: float, num_slices: int, origin_s: float = 0.0
    ) -> None:
        self._new = new
        self._slice_s = slice_s
        self._origin_s = origin_s
        self._slices: deque[tuple[int, S]] = deque(maxlen=num_slices)

    def number(self, now_s: float) -> int:
        return math.floor((now_s - self._origin_s) / self._slice_s)

    def at(self, now_s: float) -> S:
        """The slice of this moment, to add to."""
        number = self.number(now_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, self._new()))
        return self._slices[-1][1]

    def between(self, first: int, end: int) -> list[S]:
        """The slices from `first` on and before `end`."""
        return [one for number, one in self._slices if first <= number < end]
