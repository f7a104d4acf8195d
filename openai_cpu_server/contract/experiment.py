"""What an engine can leave undone, so that the benchmark can say what it is worth."""

from __future__ import annotations

import msgspec


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as users have it, or with features off: the benchmark's contestants and tests set these, and
    nobody serves so."""

    tile_filling: bool = True
    """Steps grow until they fill a kernel's tile, where that costs next to nothing or saves time."""
    mixed_steps: bool = True
    """Prompts and decoding sequences share steps."""
    continuous_batching: bool = True
    """Newcomers join between steps; off: they wait until the whole batch is done."""
    prefix_sharing: bool = True
    """Running sequences share cells, and computed prompts are saved and restored."""
    always_drafts: bool = False
    """Whatever can be drafted is computed, whether that pays or not."""


AS_SERVED = Experiment()
"""Nothing is left undone."""
