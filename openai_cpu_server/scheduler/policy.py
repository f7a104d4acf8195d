"""Who goes first: for admission, for a place in a step, and for keeping one's cells."""

from __future__ import annotations

from typing import Protocol

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.sequence import Sequence

AGING_S = 60.0
"""A batch request that came so much earlier than an interactive one is admitted before it."""
TOKENS_PER_S = 16.0
"""What a second of earlier arrival is worth in expected output, so that no long job waits for ever."""


class Policy(Protocol):
    """A smaller key goes first. Keys never change, so that queues stay sorted."""

    def lane(self, sequence: Sequence) -> int:
        """Sequences of a smaller lane may take the place of those of a larger one."""
        ...

    def client(self, sequence: Sequence) -> str:
        """Within a lane, clients take turns."""
        ...

    def key(self, sequence: Sequence) -> float: ...


class PriorityPolicy:
    """Interactive before batch; clients take turns; first come, first served. Batch work ages."""

    def lane(self, sequence: Sequence) -> int:
        return sequence.request.priority

    def client(self, sequence: Sequence) -> str:
        return sequence.request.client

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s + AGING_S * sequence.request.priority


class FifoPolicy:
    """First come, first served, whoever it is."""

    def lane(self, sequence: Sequence) -> int:
        return Priority.INTERACTIVE

    def client(self, sequence: Sequence) -> str:
        return ""

    def key(self, sequence: Sequence) -> float:
        return sequence.arrived_s


class ShortestFirstPolicy:
    """Interactive before batch; the shortest expected output first. Waiting makes up for length."""

    def lane(self, sequence: Sequence) -> int:
        return sequence.request.priority

    def client(self, sequence: Sequence) -> str:
        return ""

    def key(self, sequence: Sequence) -> float:
        aging = AGING_S * sequence.request.priority
        return sequence.request.max_tokens + TOKENS_PER_S * (sequence.arrived_s + aging)


POLICIES: dict[str, type[PriorityPolicy] | type[FifoPolicy] | type[ShortestFirstPolicy]] = {
    "priority": PriorityPolicy,
    "fifo": FifoPolicy,
    "sjf": ShortestFirstPolicy,
}
