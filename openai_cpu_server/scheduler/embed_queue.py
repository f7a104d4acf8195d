"""Queue of requests to embed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.fairness import Credit, NestedTurns, Path


@dataclass(eq=False)
class PendingEmbed:
    request: EmbedRequest
    next: int
    has_run: bool = False

    @property
    def num_left(self) -> int:
        return len(self.request.inputs) - self.next


@dataclass
class EmbedPart:
    pending: PendingEmbed
    first: int
    count: int = 0

    @property
    def inputs(self) -> tuple[tuple[int, ...], ...]:
        return self.pending.request.inputs[self.first : self.first + self.count]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.inputs))

    @property
    def num_left(self) -> int:
        return len(self.pending.request.inputs) - self.first - self.count

    @property
    def next_tokens(self) -> int:
        return len(self.pending.request.inputs[self.first + self.count])


def _path(pending: PendingEmbed) -> Path:
    return (*pending.request.turns, pending.request.id)


class EmbedCapacity(NamedTuple):
    max_inputs: int
    max_tokens: int
    budget_tokens: int
    """Tokens that fit into its time. A first input may have more, up to `max_tokens`."""


class EmbedQueue:
    """Interactive inputs go first; beside them batch work earns `batch_floor` of each step's tokens."""

    def __init__(self, *, batch_floor: float) -> None:
        self._credit = Credit(batch_floor)
        self._pending: dict[str, PendingEmbed] = {}
        self._turns = {priority: NestedTurns() for priority in Priority}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._pending)

    @property
    def best_priority(self) -> Priority | None:
        return next((priority for priority in Priority if self._turns[priority]), None)

    @property
    def num_waiting(self) -> int:
        return sum(not one.has_run for one in self._pending.values())

    @property
    def waiting(self) -> list[PendingEmbed]:
        """Requests without a computed input, about in their order."""
        order = (self._pending[path[-1]] for priority in Priority for path in self._turns[priority].order)
        return [pending for pending in order if not pending.has_run]

    def add(self, request: EmbedRequest, num_embedded: int) -> None:
        pending = PendingEmbed(request, num_embedded)
        assert pending.num_left > 0, "nothing is left to embed"
        self._pending[request.id] = pending
        self._turns[request.priority].join(_path(pending))

    def remove(self, request_id: str) -> PendingEmbed | None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._turns[pending.request.priority].leave(_path(pending))
        return pending

    def compose(self, capacity: EmbedCapacity) -> list[EmbedPart]:
        step = _Composition(capacity, self._pending)
        interactive, batch = (self._turns[priority].copy() for priority in Priority)
        if interactive and batch:
            step.add(batch, within=int(self._credit.amount))
        step.add(interactive)
        step.add(batch)
        return list(step.parts.values())

    def computed(self, parts: list[EmbedPart]) -> None:
        if all(self._turns.values()):
            batch = (part for part in parts if part.pending.request.priority is Priority.BATCH)
            used, own = (sum(one.num_tokens for one in some) for some in (parts, batch))
            self._credit.account(used, own=own)
        else:
            self._credit.lapse()
        for part in parts:
            pending = part.pending
            self._turns[pending.request.priority].use(_path(pending), part.num_tokens)
            pending.next = part.first + part.count
            if not pending.num_left:
                self.remove(pending.request.id)


class _Composition:
    def __init__(self, capacity: EmbedCapacity, pending: Mapping[str, PendingEmbed]) -> None:
        self.parts: dict[PendingEmbed, EmbedPart] = {}
        self._pending = pending
        self._capacity = capacity
        self._num_inputs = 0
        self._num_tokens = 0

    def add(self, turns: NestedTurns, within: int | None = None) -> None:
        left = self._capacity.max_tokens if within is None else within
        while turns:
            path = turns.first
            pending = self._pending[path[-1]]
            part = self.parts.get(pending) or EmbedPart(pending, pending.next)
            tokens = part.next_tokens
            if tokens > left or not self._fits(tokens):
                return
            self.parts[pending] = part
            part.count += 1
            self._num_inputs += 1
            self._num_tokens += tokens
            left -= tokens
            turns.use(path, tokens)
            if not part.num_left:
                turns.leave(path)

    def _fits(self, tokens: int) -> bool:
        capacity = self._capacity
        if not self._num_inputs:
            return tokens <= capacity.max_tokens
        limit = min(capacity.budget_tokens, capacity.max_tokens)
        return self._num_inputs < capacity.max_inputs and self._num_tokens + tokens <= limit
