from __future__ import annotations

import copy
import enum
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from openai_cpu_server.contract.model_info import attended_pairs
from openai_cpu_server.scheduler.sequence import Sequence


class StepReason(enum.Enum):
    DECODE = "decode"
    FORCED = "forced"
    PROMPT = "prompt"
    LEAST = "least"
    """Tokens beyond the time budget that prevent starvation."""
    BATCH_FLOOR = "batch-floor"
    """Batch work paid from its share of the time."""
    TILE = "tile"
    """Pending tokens that are almost free or speed up the step."""
    DRAFT = "draft"


class Assignment(NamedTuple):
    sequence: Sequence
    num_tokens: int
    reason: StepReason


class StepCapacity(NamedTuple):
    tokens: int
    outputs: int
    scored: int
    """Maximum rows of logits that may score prompt tokens."""
    equal_parts: bool = False
    """A pass takes equally many tokens of each sequence, as with states."""


class Pass(NamedTuple):
    tokens: int
    states: int


StepSize = int | tuple[Pass, ...]


def equal_passes(lengths: Iterable[int]) -> tuple[Pass, ...]:
    passes: list[Pass] = []
    left = sorted(lengths)
    done = 0
    while left:
        length = left[0]
        passes.append(Pass((length - done) * len(left), len(left)))
        done = length
        left = left[bisect_right(left, length) :]
    return tuple(passes)


class StepPlan:
    def __init__(self, capacity: StepCapacity, budget_ms: float = math.inf) -> None:
        self.budget_ms = budget_ms
        """Limit, which drafts do not exceed."""
        self.assignments: list[Assignment] = []
        self.parts: dict[Sequence, int] = {}
        """Tokens before drafts, in the order in which sequences claim cells."""
        self.drafts: dict[Sequence, int] = {}
        self.num_tokens = 0
        self.attended = 0
        self._capacity = capacity
        self._outputs_left = capacity.outputs
        self._scored_left = capacity.scored

    def copy(self) -> StepPlan:
        copied = copy.copy(self)
        copied.assignments = list(self.assignments)
        copied.parts, copied.drafts = dict(self.parts), dict(self.drafts)
        return copied

    def limited_to(self, parts: Mapping[Sequence, int]) -> StepPlan:
        if parts == self.parts:
            return self
        limited = StepPlan(self._capacity, self.budget_ms)
        for sequence, num_tokens, reason in self.assignments:
            left = parts.get(sequence, 0) - limited.parts.get(sequence, 0)
            limited.add(sequence, min(num_tokens, left), reason)
        return limited

    @property
    def size(self) -> StepSize:
        return equal_passes(map(self.num_of, self.parts)) if self._capacity.equal_parts else self.num_tokens

    def size_with(self, sequence: Sequence, num_tokens: int) -> StepSize:
        if not self._capacity.equal_parts:
            return self.num_tokens + num_tokens
        others = (self.num_of(other) for other in self.parts if other is not sequence)
        return equal_passes([*others, self.num_of(sequence) + num_tokens])

    @property
    def in_equal_parts(self) -> bool:
        return self._capacity.equal_parts

    @property
    def room(self) -> int:
        return self._capacity.tokens - self.num_tokens

    @property
    def draft_room(self) -> int:
        return max(0, min(self.room, self._outputs_left))

    def num_of(self, sequence: Sequence) -> int:
        return self.parts.get(sequence, 0) + self.drafts.get(sequence, 0)

    def left_of(self, sequence: Sequence) -> int:
        return sequence.readable - self.parts.get(sequence, 0)

    def room_for(self, sequence: Sequence) -> int:
        """Scoring needs a row of logits for each token."""
        if self._outputs_left <= 0:
            return 0
        scored = min(self._scored_left, self._outputs_left) if sequence.is_scoring else self.room
        return max(0, min(self.room, scored))

    def reasons(self) -> dict[Sequence, dict[StepReason, int]]:
        found = {s: {StepReason.DRAFT: num_tokens} for s, num_tokens in self.drafts.items() if num_tokens}
        for sequence, num_tokens, reason in self.assignments:
            of_it = found.setdefault(sequence, {})
            of_it[reason] = of_it.get(reason, 0) + num_tokens
        return found

    def pairs(self, sequence: Sequence, num_tokens: int) -> int:
        return attended_pairs(sequence.computed + self.num_of(sequence), num_tokens)

    def add(self, sequence: Sequence, num_tokens: int, reason: StepReason) -> None:
        num_tokens = min(num_tokens, self.left_of(sequence), self.room_for(sequence))
        if num_tokens > 0 and sequence.request.media and sequence.computes_whole:
            num_tokens = self.left_of(sequence)
            num_tokens *= num_tokens <= self.room_for(sequence)
        if num_tokens <= 0:
            return
        self._count(sequence, num_tokens)
        self.assignments.append(Assignment(sequence, num_tokens, reason))
        self.parts[sequence] = self.parts.get(sequence, 0) + num_tokens
        ends = sequence.pending == self.parts[sequence]
        self._outputs_left -= num_tokens if sequence.is_scoring else ends
        self._scored_left -= num_tokens * sequence.is_scoring

    def add_draft(self, sequence: Sequence, num_tokens: int) -> None:
        assert 0 < num_tokens <= self.draft_room
        self._count(sequence, num_tokens)
        self.drafts[sequence] = self.drafts.get(sequence, 0) + num_tokens
        self._outputs_left -= num_tokens

    def drop_draft(self, sequence: Sequence, num_tokens: int) -> None:
        self.drafts[sequence] -= num_tokens
        self.num_tokens -= num_tokens
        self.attended -= self.pairs(sequence, num_tokens)
        self._outputs_left += num_tokens

    def _count(self, sequence: Sequence, num_tokens: int) -> None:
        self.attended += self.pairs(sequence, num_tokens)
        self.num_tokens += num_tokens


class StepCost(Protocol):
    def predict_ms(self, size: StepSize, attended: int = 0) -> float:
        """`attended`: pairs of a token and a cell."""

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        """Return the clearly fastest size to the end of the tile, at most `limit`."""

    def free_size(self, num_tokens: int, limit: int) -> int:
        """Return the largest size in the tile whose additional tokens are almost free."""

    def chunk_size(self, limit: int) -> int:
        """Return the smallest size from which a token becomes hardly cheaper."""

    def refine(self, size: StepSize, attended: int, actual_ms: float) -> None: ...


@dataclass(frozen=True)
class StepPrices:
    cost: StepCost
    max_tokens: int
    fills_tiles: bool = True
    """Grow to a faster size with pending tokens or padding."""

    @property
    def single_ms(self) -> float:
        return self.cost.predict_ms(1)

    def ms(self, plan: StepPlan) -> float:
        return self.cost.predict_ms(plan.size, plan.attended)

    def ms_with(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> float:
        attended = plan.attended + plan.pairs(sequence, num_tokens)
        return self.cost.predict_ms(plan.size_with(sequence, num_tokens), attended)

    def padded_ms(self, plan: StepPlan, num_further: int = 0) -> float:
        size = plan.size
        if isinstance(size, int):
            size = self.padded_size(size + num_further)
        elif num_further:
            size = (*size, Pass(num_further, 1))
        return self.cost.predict_ms(size, plan.attended)

    def padded_size(self, num_tokens: int) -> int:
        return self.cost.cheapest_size(num_tokens, self.max_tokens) if self.fills_tiles else num_tokens

    def worthwhile_size(self, num_tokens: int) -> int:
        if not self.fills_tiles or not num_tokens:
            return num_tokens
        return max(self.padded_size(num_tokens), self.cost.free_size(num_tokens, self.max_tokens))

    def chunk_room(self, plan: StepPlan) -> int:
        """More prompt tokens would let a new request wait longer, for nothing."""
        return max(0, self.cost.chunk_size(self.max_tokens) - plan.num_tokens)

    def fit(self, plan: StepPlan, sequence: Sequence, wanted: int, budget_ms: float) -> int:
        wanted = max(0, min(wanted, plan.room_for(sequence)))
        if not wanted or self.ms_with(plan, sequence, wanted) <= budget_ms:
            return wanted
        return bisect_right(range(1, wanted), budget_ms, key=lambda n: self.ms_with(plan, sequence, n))
