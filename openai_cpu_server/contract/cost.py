"""The cost of a step of this model on this machine. It is measured in `llama/` and used in `scheduler/`."""

from __future__ import annotations

import msgspec

TILE_TOKENS = 16
"""The rows of a tile in ggml's matrix kernels: costs climb in such stairs (docs/measurements.md)."""
ATTENTION_TILE_ROWS = 64
"""ggml's GGML_FA_TILE_Q: steps of at least so many tokens attend in tiles of so many rows."""


class TiledAttention(msgspec.Struct, frozen=True):
    """Large steps attend in tiles: `rows` tokens at once read every cell that any of them attends to.

    This is cheap for one long prompt. It is dear where many sequences decode, as each pays for the cells of
    all.
    """

    rows: int
    """The tokens of a tile. A step of fewer tokens does not attend in tiles."""
    pair_ms: float
    """Milliseconds per pair of a row of a tile and a cell."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts the time of a step: a table over its tokens, plus a price for the cells that they attend to.

    A token attends to the cells of its own sequence before it, those of the same step included, and skips all
    other cells in the pool.
    """

    step_ms: tuple[tuple[int, float], ...]
    """(tokens, milliseconds) without attention, by tokens ascending: points of a staircase."""
    attended_ms: float
    """Milliseconds per pair of a token and a cell of its own sequence."""
    skipped_ms: float
    """Milliseconds per pair of a token and a cell of another sequence."""
    tiled: TiledAttention | None = None
    """The price in tiles; None: `attended_ms` holds for steps of any size."""

    def attention_ms(self, num_tokens: int, attended: int, cells: int | None) -> float:
        """Milliseconds for attention. `attended` counts pairs in the step. `cells` counts what its sequences
        attend to, shared cells once; None: one sequence's cells.

        One tile, where the decoding sequences are, reads the cells of all; the others read what they attend
        to.
        """
        tiled = self.tiled
        if tiled is None or num_tokens < tiled.rows:
            return self.attended_ms * attended
        if cells is None:
            return tiled.pair_ms * attended
        return tiled.pair_ms * (tiled.rows * cells + attended * (1.0 - tiled.rows / num_tokens))


def attended_pairs(start: int, num_tokens: int) -> int:
    """The number of pairs of a token at one of `num_tokens` positions
    from `start` on and a cell before it."""
    return num_tokens * start + num_tokens * (num_tokens - 1) // 2
