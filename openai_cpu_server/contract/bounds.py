"""The least and the most that the numbers of a request may be. The API and the engine hold to the same.

Each bound fits into what native code has for it, float32 or int32, and so does what is computed from it: a
penalty of 1e-300 is 0 there, and divides.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_INT = 2**31 - 1
"""Of an int32."""


class Bounds(NamedTuple):
    least: float
    most: float

    def hold(self, number: float) -> bool:
        """Whether the number is within them; NaN never is."""
        return self.least <= number <= self.most

    def nearest(self, number: float) -> float:
        return min(max(number, self.least), self.most)


class WholeBounds(NamedTuple):
    least: int
    most: int

    def hold(self, number: int) -> bool:
        return self.least <= number <= self.most


SMALLEST = 1e-6
"""What is nearer to 0 is taken for 0: it would change nothing, or be too small for float32."""
COLDEST = 1e-5
"""Lower temperatures are greedy, as with vLLM."""

TEMPERATURE = Bounds(0.0, 2.0)
SHARE = Bounds(0.0, 1.0)
"""`top_p` and `min_p`."""
TYPICAL_P = Bounds(0.001, 1.0)
REPEAT_PENALTY = Bounds(0.01, 100.0)
USAGE_PENALTY = Bounds(-2.0, 2.0)
"""`presence_penalty` and `frequency_penalty`."""
LOGIT_BIAS = Bounds(-100.0, 100.0)
TOP_K = WholeBounds(1, MOST_INT)
COUNT = WholeBounds(0, MOST_INT)
"""Tokens, choices, items."""
