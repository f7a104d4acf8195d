"""Who goes first. A policy gives each sequence a key; smaller goes first, for admission and within a step."""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.scheduler.sequence import Sequence

Key = tuple[int, int]


class Policy(Protocol):
    def key(self, sequence: Sequence) -> Key:
        """Unique, and constant for a sequence's life."""
        ...


class PriorityPolicy:
    """Interactive before batch, then first come, first served."""

    def key(self, sequence: Sequence) -> Key:
        return (sequence.request.priority, sequence.arrival)
