"""The waiting room: sequences in the policy's order, entered and left in O(log n)."""

from __future__ import annotations

import heapq

from openai_cpu_server.scheduler.policy import Key, Policy
from openai_cpu_server.scheduler.sequence import Sequence, Status


class WaitingRoom:
    """A heap with lazy removal: a sequence that has left the room is skipped when it comes up."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Key, Sequence]] = []

    def enter(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (self._policy.key(sequence), sequence))

    def first(self) -> Sequence | None:
        while self._heap and self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def leave(self) -> None:
        """Take out the first."""
        heapq.heappop(self._heap)
