"""The cost of a step of this model on this machine. It is measured in `llama/` and used in `scheduler/`."""

from __future__ import annotations

import msgspec

TILE_TOKENS = 16
"""The rows of a tile in ggml's matrix kernels: costs climb in such stairs (docs/measurements.md)."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts the time of a step: a table over its tokens, plus a price for the cells that they attend to.

    A token attends to the cells of its own sequence before it, those of the same step included.
    """

    step_ms: tuple[tuple[int, float], ...]
    """(tokens, milliseconds) without attention, by tokens ascending: points of a staircase."""
    attended_ms: float
    """Milliseconds per pair of a token and a cell that it attends to."""


def attended_pairs(start: int, num_tokens: int) -> int:
    """The number of pairs of a token at one of `num_tokens` positions
    from `start` on and a cell before it."""
    return num_tokens * start + num_tokens * (num_tokens - 1) // 2
