"""Policies say who goes first: for admission, for a place in a step, and for keeping one's cells.

No policy moves batch work in front of an interactive request, however long it has waited: its share is the
scheduler's concern (`batch_floor`).
"""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.sequence import Sequence

TOKENS_PER_S = 16.0
"""A second of earlier arrival is worth so many tokens of expected output: else long jobs might wait for ever.

It is a rule of fairness, not a measured price: a job of 1,000 tokens overtakes every job of 40 that comes a
minute later.
"""


class Policy(Protocol):
    """A smaller key goes first. Keys never change, so that queues stay sorted."""

    def lane(self, sequence: Sequence) -> int:
        """Sequences of a smaller lane may take the place of those of a larger one."""
        ...

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        """Within a lane, groups of clients take turns, and within a group clients."""
        ...

    def key(self, sequence: Sequence) -> float: ...


class PriorityPolicy:
    """Interactive before batch; clients take turns; first come, first served."""

    def lane(self, sequence: Sequence) -> int:
        return sequence.request.priority

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return sequence.request.turns

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s


class FifoPolicy:
    """First come, first served, whoever it is."""

    def lane(self, sequence: Sequence) -> int:
        return Priority.INTERACTIVE

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s


class ShortestFirstPolicy:
    """Interactive before batch; the shortest expected output first. Waiting makes up for length."""

    def lane(self, sequence: Sequence) -> int:
        return sequence.request.priority

    def turns(self, sequence: Sequence) -> tuple[str, str]:
        return "", ""

    def key(self, sequence: Sequence) -> float:
        return sequence.expected_output + TOKENS_PER_S * sequence.arrived_s


POLICIES: dict[str, type[PriorityPolicy] | type[FifoPolicy] | type[ShortestFirstPolicy]] = {
    "priority": PriorityPolicy,
    "fifo": FifoPolicy,
    "sjf": ShortestFirstPolicy,
}
