"""What a step costs on this machine with this model: measured in `llama/`, used in `scheduler/`."""

from __future__ import annotations

import msgspec


class TiledAttention(msgspec.Struct, frozen=True):
    """Large steps attend in tiles: `rows` tokens at once over every cell that any of them attends to.

    Cheap for one long prompt; dear where many sequences decode, for each then pays for the cells of all.
    """

    rows: int
    """Tokens of a tile, and of the smallest step that attends so."""
    pair_ms: float
    """Per pair of a tile's row and a cell."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Predicts a step: table over its tokens, plus a price for what its tokens attend to.

    A token attends to the cells of its own sequence before it, those of the same step included, and skips
    everybody else's in the pool.
    """

    step_ms: tuple[tuple[int, float], ...]
    """(tokens, milliseconds) with nothing attended to, by tokens ascending; points of a staircase."""
    attended_ms: float
    """Per pair of a token and a cell of its own sequence."""
    skipped_ms: float
    """Per pair of a token and a cell of another sequence."""
    tiled: TiledAttention | None = None
    """None: `attended_ms` holds for steps of any size."""

    def attention_ms(self, num_tokens: int, attended: int, cells: int | None) -> float:
        """`attended`: pairs in the step. `cells`: those that its sequences attend to, shared ones counted
        once; None: one sequence's.

        Of the tiles one, where the decoding sequences are, sees the cells of all; the others see what is
        attended to.
        """
        tiled = self.tiled
        if tiled is None or num_tokens < tiled.rows:
            return self.attended_ms * attended
        if cells is None:
            return tiled.pair_ms * attended
        return tiled.pair_ms * (tiled.rows * cells + attended * (1.0 - tiled.rows / num_tokens))


def attended_pairs(start: int, num_tokens: int) -> int:
    """Pairs of the tokens at positions start .. start+num_tokens-1 and the cells before each."""
    return num_tokens * start + num_tokens * (num_tokens - 1) // 2
