"""Scheduling options of all engines of a server, and features that a benchmark may turn off."""

from __future__ import annotations

from typing import Literal

import msgspec


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Features that benchmarks and tests turn off. Served engines have the defaults."""

    tile_filling: bool = True
    """Grow steps until they fill a kernel's tile, where that is almost free or saves time."""
    mixed_steps: bool = True
    """Compute prompts and decoding sequences in the same steps."""
    continuous_batching: bool = True
    """Let new requests join between steps; without it they wait until the whole batch is done."""
    prefix_sharing: bool = True
    """Share KV cells between running sequences, and save and restore computed prompts."""
    always_drafts: bool = False
    """Compute every draft, also where it does not pay."""


AS_SERVED = Experiment()


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the scheduler with their defaults. The fields have the names of the command line."""

    policy: Literal["priority", "fifo", "sjf"] = "priority"
    stream_rate: float = 2.5
    """Minimum tokens per second of an interactive stream while other prompts are computed."""
    stall_ms: float = 520.0
    """Longest gap between two tokens of such a stream."""
    batch_stall_ms: float = 800.0
    """Longest step while no interactive stream waits for it. A new request may have to wait for it."""
    batch_floor: float = 0.1
    """Share of slots and time, 0 to 1, reserved for batch work."""
    preempt_threshold_ms: float = 60.0
    """Longest wait of a new interactive request for batch work. It interrupts a batch step with more time
    left; beside interactive streams, where it may not, batch work makes no step longer."""

    @property
    def pace_ms(self) -> float:
        """Time between two tokens at the minimum rate of streams."""
        return min(1000 / self.stream_rate, self.stall_ms)

    @property
    def batch_beside_ms(self) -> float:
        """Longest step for the sake of batch work beside interactive work."""
        return min(self.preempt_threshold_ms, self.pace_ms)

    def without_interruption(self) -> Scheduling:
        """Return settings for steps that cannot be discarded: shorter batch steps, for the same wait."""
        return msgspec.structs.replace(self, batch_stall_ms=min(self.batch_stall_ms, self.batch_beside_ms))


BY_DEFAULT = Scheduling()
