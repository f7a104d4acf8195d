"""How all engines of a server share their time between those who wait, and what a benchmark may have them
leave undone."""

from __future__ import annotations

from typing import Literal

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


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, the scheduler and the page know these by the names of the command line, and their
    defaults are here."""

    policy: Literal["priority", "fifo", "sjf"] = "priority"
    """Who goes first."""
    stream_rate: float = 2.5
    """Tokens per second that an interactive stream keeps at least while others' prompts are read."""
    stall_ms: float = 520.0
    """The longest gap between two of its tokens."""
    batch_stall_ms: float = 800.0
    """The longest step that no interactive stream waits for. A newcomer may have to."""
    batch_floor: float = 0.1
    """The share of slots and time, 0 to 1, that batch work keeps, whatever comes."""
    preempt_threshold_ms: float = 60.0
    """What an interactive newcomer waits for batch work: it interrupts a batch step that has longer than this
    left; and beside interactive streams, where it may not, batch work makes no step longer.
    """

    @property
    def pace_ms(self) -> float:
        """The time between two tokens at the rate that streams keep."""
        return min(1000 / self.stream_rate, self.stall_ms)

    @property
    def batch_beside_ms(self) -> float:
        """What a step may take for the sake of batch work beside interactive work."""
        return min(self.preempt_threshold_ms, self.pace_ms)

    def without_interruption(self) -> Scheduling:
        """Where a step cannot be thrown away: a newcomer waits as long as it would for one that can."""
        return msgspec.structs.replace(self, batch_stall_ms=min(self.batch_stall_ms, self.batch_beside_ms))


BY_DEFAULT = Scheduling()
