"""The plan of a step: how many tokens each sequence computes in it, why, and what that costs."""

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
    """Why tokens are computed in a step. The step log tells it."""

    DECODE = "decode"
    """The next token of a sequence that decodes."""
    FORCED = "forced"
    """Tokens that a constraint has forced behind that."""
    PROMPT = "prompt"
    """Tokens of a prompt, within the time that the step may take."""
    LEAST = "least"
    """Tokens beyond that time, so that nobody is locked out."""
    BATCH_FLOOR = "batch-floor"
    """Batch work that its share of the time has paid for."""
    TILE = "tile"
    """Pending tokens that cost next to nothing, or make the step faster."""
    DRAFT = "draft"
    """Tokens that may follow."""


class Assignment(NamedTuple):
    """Pending tokens that a sequence computes in the step, behind those assigned before."""

    sequence: Sequence
    num_tokens: int
    reason: StepReason


class StepRoom(NamedTuple):
    """What the backend can compute in one step."""

    tokens: int
    outputs: int
    """Rows of logits."""
    scored: int
    """How many of these rows may score prompt tokens."""
    equal_parts: bool = False
    """Whether it computes a step in passes, as it does where sequences have states: first as many tokens of
    each as the shortest part has, then of those that are left, and so on."""


class Pass(NamedTuple):
    """One pass over the weights."""

    tokens: int
    states: int
    """How many states it reads and writes."""


StepSize = int | tuple[Pass, ...]
"""The tokens of a step that is one pass, or its passes."""


def equal_passes(lengths: Iterable[int]) -> tuple[Pass, ...]:
    """The passes of a step with so many tokens of each sequence."""
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
    """Tokens of a step that is being planned, as far as there is room for them. It knows no prices."""

    def __init__(self, room: StepRoom, budget_ms: float = math.inf) -> None:
        self.budget_ms = budget_ms
        """The time that each step may take: drafts make it no longer."""
        self.assignments: list[Assignment] = []
        self.parts: dict[Sequence, int] = {}
        """How many tokens each sequence computes, drafts not counted, in the order that they claim cells."""
        self.drafts: dict[Sequence, int] = {}
        """How many draft tokens each sequence computes behind those."""
        self.num_tokens = 0
        self.attended = 0
        """Pairs of a token and a cell that it attends to."""
        self._room = room
        self._outputs_left = room.outputs
        self._scored_left = room.scored

    def copy(self) -> StepPlan:
        """A copy on which something can be tried out."""
        copied = copy.copy(self)
        copied.assignments = list(self.assignments)
        copied.parts, copied.drafts = dict(self.parts), dict(self.drafts)
        return copied

    def limited_to(self, parts: Mapping[Sequence, int]) -> StepPlan:
        """The plan with only these tokens of each sequence, where not all that was planned got cells."""
        if parts == self.parts:
            return self
        limited = StepPlan(self._room, self.budget_ms)
        for sequence, num_tokens, reason in self.assignments:
            left = parts.get(sequence, 0) - limited.parts.get(sequence, 0)
            limited.add(sequence, min(num_tokens, left), reason)
        return limited

    @property
    def size(self) -> StepSize:
        return equal_passes(map(self.num_of, self.parts)) if self._room.equal_parts else self.num_tokens

    def size_with(self, sequence: Sequence, num_tokens: int) -> StepSize:
        """Its size with so many further tokens of the sequence."""
        if not self._room.equal_parts:
            return self.num_tokens + num_tokens
        others = (self.num_of(other) for other in self.parts if other is not sequence)
        return equal_passes([*others, self.num_of(sequence) + num_tokens])

    @property
    def in_equal_parts(self) -> bool:
        """As `StepRoom` has it."""
        return self._room.equal_parts

    @property
    def room(self) -> int:
        """How many tokens the step has room for."""
        return self._room.tokens - self.num_tokens

    @property
    def draft_room(self) -> int:
        """How many draft tokens the step has room for."""
        return max(0, min(self.room, self._outputs_left))

    def num_of(self, sequence: Sequence) -> int:
        """How many tokens of the sequence the step computes, drafts included."""
        return self.parts.get(sequence, 0) + self.drafts.get(sequence, 0)

    def left_of(self, sequence: Sequence) -> int:
        """How many tokens of the sequence this step can still compute, beside those planned."""
        return sequence.readable - self.parts.get(sequence, 0)

    def room_for(self, sequence: Sequence) -> int:
        """How many of its tokens there is room for; scoring needs a row of logits for each."""
        if self._outputs_left <= 0:
            return 0
        scored = min(self._scored_left, self._outputs_left) if sequence.is_scoring else self.room
        return max(0, min(self.room, scored))

    def reasons(self) -> dict[Sequence, dict[StepReason, int]]:
        """How many tokens of each sequence are computed for which reason."""
        found = {s: {StepReason.DRAFT: num_tokens} for s, num_tokens in self.drafts.items() if num_tokens}
        for sequence, num_tokens, reason in self.assignments:
            of_it = found.setdefault(sequence, {})
            of_it[reason] = of_it.get(reason, 0) + num_tokens
        return found

    def pairs(self, sequence: Sequence, num_tokens: int) -> int:
        """The pairs of so many further tokens of the sequence and the cells that they attend to."""
        return attended_pairs(sequence.computed + self.num_of(sequence), num_tokens)

    def add(self, sequence: Sequence, num_tokens: int, reason: StepReason) -> None:
        """Plan further tokens of the sequence, as many as there is room for."""
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
        """Plan draft tokens behind all pending tokens of the sequence. The caller has asked `draft_room`."""
        assert 0 < num_tokens <= self.draft_room
        self._count(sequence, num_tokens)
        self.drafts[sequence] = self.drafts.get(sequence, 0) + num_tokens
        self._outputs_left -= num_tokens

    def drop_draft(self, sequence: Sequence, num_tokens: int) -> None:
        """Take the last `num_tokens` of the sequence's draft out, because they were not computed."""
        self.drafts[sequence] -= num_tokens
        self.num_tokens -= num_tokens
        self.attended -= self.pairs(sequence, num_tokens)
        self._outputs_left += num_tokens

    def _count(self, sequence: Sequence, num_tokens: int) -> None:
        self.attended += self.pairs(sequence, num_tokens)
        self.num_tokens += num_tokens


class StepCost(Protocol):
    """What the scheduler asks of the cost model. Times are in milliseconds."""

    def predict_ms(self, size: StepSize, attended: int = 0) -> float:
        """The time that a step takes. `attended`: pairs of a token and a cell that it attends to."""
        ...

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        """The step size from `num_tokens` to its tile's end, at most `limit`, that takes clearly least time.
        It is `num_tokens` itself if no larger size gains clearly."""
        ...

    def free_size(self, num_tokens: int, limit: int) -> int:
        """The largest step size in the tile, at most `limit`, whose added tokens cost next to nothing. Fill
        it with tokens that must be computed anyway, not with padding."""
        ...

    def refine(self, size: StepSize, attended: int, actual_ms: float) -> None:
        """Learn from a step that was computed and took `actual_ms`."""
        ...


@dataclass(frozen=True)
class StepPrices:
    """What plans cost, as a cost model predicts it. Times are in milliseconds."""

    cost: StepCost
    max_tokens: int
    fills_tiles: bool = True
    """Whether steps grow to a size that is faster: with pending tokens, else with padding."""

    @property
    def single_ms(self) -> float:
        """The time of a step with one token that attends to nothing."""
        return self.cost.predict_ms(1)

    def ms(self, plan: StepPlan) -> float:
        """The time of the step as it is planned, without padding."""
        return self.cost.predict_ms(plan.size, plan.attended)

    def ms_with(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> float:
        """The time of the step with so many further tokens of the sequence, without padding."""
        attended = plan.attended + plan.pairs(sequence, num_tokens)
        return self.cost.predict_ms(plan.size_with(sequence, num_tokens), attended)

    def padded_ms(self, plan: StepPlan, num_further: int = 0) -> float:
        """The time of the step with padding, and with further tokens that attend to nothing."""
        size = plan.size
        if isinstance(size, int):
            size = self.padded_size(size + num_further)
        elif num_further:
            size = (*size, Pass(num_further, 1))
        return self.cost.predict_ms(size, plan.attended)

    def padded_size(self, num_tokens: int) -> int:
        return self.cost.cheapest_size(num_tokens, self.max_tokens) if self.fills_tiles else num_tokens

    def worthwhile_size(self, num_tokens: int) -> int:
        """The size up to which it costs next to nothing, or saves time, to add pending tokens."""
        if not self.fills_tiles or not num_tokens:
            return num_tokens
        return max(self.padded_size(num_tokens), self.cost.free_size(num_tokens, self.max_tokens))

    def fit(self, plan: StepPlan, sequence: Sequence, wanted: int, budget_ms: float) -> int:
        """How many of the wanted tokens fit into the budget and the backend."""
        wanted = max(0, min(wanted, plan.room_for(sequence)))
        if not wanted or self.ms_with(plan, sequence, wanted) <= budget_ms:
            return wanted
        return bisect_right(range(1, wanted), budget_ms, key=lambda n: self.ms_with(plan, sequence, n))
