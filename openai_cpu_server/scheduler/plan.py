"""The plan of a step: how many tokens each sequence computes in it, and what that costs."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Protocol

from openai_cpu_server.contract.cost import TILE_TOKENS, attended_pairs
from openai_cpu_server.scheduler.sequence import Sequence


class StepCost(Protocol):
    """What the scheduler asks of the cost model. Times are in milliseconds."""

    @property
    def tiled_from(self) -> int | None:
        """The step size, in tokens, from which attention is computed in tiles; None: it never is.

        In a tile every row pays for each cell that any of its rows attends to.
        """
        ...

    def predict_ms(self, num_tokens: int, attended: int, skipped: int, cells: int | None = None) -> float:
        """The time that a step takes.

        `attended` and `skipped` are pairs of a token and a cell: of its own sequence, and of others. `cells`
        is the number of distinct cells that the step attends to; None: those of one sequence.
        """
        ...

    def cheapest_size(self, num_tokens: int, limit: int, pool_cells: int = 0) -> int:
        """The step size from `num_tokens` to its tile's end, at most `limit`, that takes clearly least time.

        Each token that is added skips `pool_cells` cells.
        """
        ...

    def free_size(self, num_tokens: int, limit: int) -> int:
        """The largest step size in the tile, at most `limit`, whose added tokens cost next to nothing."""
        ...

    def refine(
        self, num_tokens: int, attended: int, skipped: int, actual_ms: float, cells: int | None = None
    ) -> None:
        """Learn from a step that was computed and took `actual_ms`."""
        ...


class StepPlan:
    """Tokens of a step that is being planned. It knows what the step costs, and would cost with some more."""

    def __init__(
        self,
        cost: StepCost,
        *,
        pool_cells: int,
        max_tokens: int,
        max_outputs: int,
        max_scored: int | None = None,
        pads: bool = True,
        is_staged: bool = False,
    ) -> None:
        """An empty plan.

        `pool_cells`: cells that all sequences hold where the step is computed. `max_tokens`, `max_outputs`:
        tokens, and rows of logits, that the backend can compute in a step. `max_scored`: those of these rows
        that may score prompt tokens; None: all. `pads`: the step will be padded where that makes it faster.
        `is_staged`: the step is computed beside the pool, so that it skips none of the pool's cells.
        """
        self.is_staged = is_staged
        self.parts: dict[Sequence, int] = {}
        """How many tokens each sequence computes, drafts not counted, in the order that they claim cells."""
        self.drafts: dict[Sequence, int] = {}
        """How many draft tokens each sequence computes behind those."""
        self.num_tokens = 0
        self.attended = 0
        self.skipped = 0
        self.drafting_ms = 0.0
        """The time that a draft model takes before the step."""
        self.budget_ms = math.inf
        """The time that the step may take."""
        self.plain_ms: float | None = None
        """The time that the step would take without drafts; None: no sequence in it could have one."""
        self._own_cells = 0
        """Cells of all sequences in the step; a shared cell counts once for each of them."""
        self._cost = cost
        self._pool_cells = pool_cells
        """Cells that all sequences hold, shared ones counted once. A token skips those of the others."""
        self._max_tokens = max_tokens
        self._outputs_left = self._max_outputs = max_outputs
        self._scored_left = self._max_scored = max_outputs if max_scored is None else max_scored
        self._pads = pads

    def copy(self) -> StepPlan:
        """A copy on which something can be tried out."""
        copied = copy.copy(self)
        copied.parts, copied.drafts = dict(self.parts), dict(self.drafts)
        return copied

    def _emptied(self) -> StepPlan:
        empty = copy.copy(self)
        empty.parts, empty.drafts = {}, {}
        empty.num_tokens = empty.attended = empty.skipped = empty._own_cells = 0
        empty._outputs_left, empty._scored_left = self._max_outputs, self._max_scored
        return empty

    def limited_to(self, parts: Mapping[Sequence, int]) -> StepPlan:
        """The plan with only these tokens of each sequence, where not all that was planned got cells."""
        if parts == self.parts:
            return self
        limited = self._emptied()
        for sequence, num_tokens in parts.items():
            limited.add(sequence, num_tokens)
        return limited

    @property
    def attends_in_tiles(self) -> bool:
        tiled_from = self._cost.tiled_from
        return tiled_from is not None and self.num_tokens >= tiled_from

    def up_to_tiles(self) -> StepPlan | None:
        """A copy that takes no more tokens than the smallest step that attends in tiles, if any does."""
        if self._cost.tiled_from is None:
            return None
        copied = self.copy()
        copied._max_tokens = min(self._max_tokens, self._cost.tiled_from)
        return copied

    @property
    def ms(self) -> float:
        """The predicted time of the step as it is planned, without padding and drafting."""
        return self._cost.predict_ms(self.num_tokens, self.attended, self.skipped, self.cells)

    @property
    def single_ms(self) -> float:
        """The time of a step with one token that attends to nothing."""
        return self._cost.predict_ms(1, 0, 0)

    @property
    def tile_token_ms(self) -> float:
        """The time per token of a step that fills one tile and attends to nothing."""
        return self._cost.predict_ms(TILE_TOKENS, 0, 0) / TILE_TOKENS

    @property
    def bulk_token_ms(self) -> float:
        """The time per token of the largest step, if it attends to nothing."""
        return self._cost.predict_ms(self._max_tokens, 0, 0) / self._max_tokens

    @property
    def padded_ms(self) -> float:
        """The time of the step with its padding."""
        return self.least_ms(0)

    def least_ms(self, num_further: int) -> float:
        """The time of the step with padding and further tokens that attend to nothing: it takes no less."""
        size = self.num_tokens + num_further
        if self._pads:
            size = self._cost.cheapest_size(size, self._max_tokens, self._pool_cells)
        return self._cost.predict_ms(size, self.attended, self.skipped, self.cells)

    @property
    def draft_room(self) -> int:
        """How many draft tokens the step has room for."""
        return max(0, min(self.room, self._outputs_left))

    def num_of(self, sequence: Sequence) -> int:
        """How many tokens of the sequence the step computes, drafts included."""
        return self.parts.get(sequence, 0) + self.drafts.get(sequence, 0)

    @property
    def cells(self) -> int:
        """An upper limit of the distinct cells that the step attends to."""
        return min(self._own_cells, self._pool_cells + self.num_tokens)

    @property
    def room(self) -> int:
        """How many tokens the step has room for."""
        return self._max_tokens - self.num_tokens

    @property
    def least_share(self) -> int:
        """How many tokens prompts get beyond the budget: a kernel's tile, as far as there is room.

        There are fewer if the step would else begin to attend in tiles.
        """
        tiled_from = self._cost.tiled_from
        short = 0 if tiled_from is None else tiled_from - 1 - self.num_tokens
        return min(TILE_TOKENS, self.room, short if short > 0 else TILE_TOKENS)

    @property
    def worthwhile(self) -> int:
        """The step size up to which it costs next to nothing, or saves time, to add pending tokens."""
        cheapest = self._cost.cheapest_size(self.num_tokens, self._max_tokens)
        return max(cheapest, self._cost.free_size(self.num_tokens, self._max_tokens))

    def left_of(self, sequence: Sequence) -> int:
        """How many pending tokens of the sequence are not planned yet."""
        return sequence.pending - self.parts.get(sequence, 0)

    def fit(self, sequence: Sequence, wanted: int, budget_ms: float) -> int:
        """How many of the wanted tokens fit into the budget and the backend.

        It gives fewer where more would make the step attend in tiles, and slower per token.
        """
        wanted = max(0, min(wanted, self.room, self._outputs_for(sequence)))
        if wanted and self._ms_with(sequence, wanted) > budget_ms:
            wanted = self._most(sequence, wanted, budget_ms)
        return self._before_tiles(sequence, wanted)

    def _most(self, sequence: Sequence, too_many: int, budget_ms: float) -> int:
        """The largest number of tokens, below `too_many`, that fits into the budget."""
        low, high = 0, too_many  # `low` fits, `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._ms_with(sequence, middle) <= budget_ms:
                low = middle
            else:
                high = middle
        return low

    def _before_tiles(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of the tokens to take: the price may jump where the step begins to attend in tiles.

        It stops short of that if the step then computes more tokens per time.
        """
        tiled_from = self._cost.tiled_from
        short = 0 if tiled_from is None else tiled_from - 1 - self.num_tokens
        if not 0 < short < num_tokens:
            return num_tokens
        return max(short, num_tokens, key=lambda n: (self.num_tokens + n) / self._ms_with(sequence, n))

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Plan further tokens of the sequence, as many as there is room for."""
        num_tokens = min(num_tokens, self.room, self._outputs_for(sequence))
        if num_tokens <= 0:
            return
        self._count(sequence, num_tokens)
        self.parts[sequence] = self.parts.get(sequence, 0) + num_tokens
        ends = self.left_of(sequence) == 0
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
        attended, skipped = self._pairs(sequence, num_tokens)
        self._own_cells -= num_tokens
        self.num_tokens -= num_tokens
        self.attended -= attended
        self.skipped -= skipped
        self._outputs_left += num_tokens

    def _count(self, sequence: Sequence, num_tokens: int) -> None:
        attended, skipped = self._pairs(sequence, num_tokens)
        self._own_cells += self._cells_of(sequence, num_tokens)
        self.num_tokens += num_tokens
        self.attended += attended
        self.skipped += skipped

    def _outputs_for(self, sequence: Sequence) -> int:
        """How many tokens of the sequence the remaining rows of logits allow; scoring needs one per token."""
        if self._outputs_left <= 0:
            return 0
        return max(0, min(self._scored_left, self._outputs_left)) if sequence.is_scoring else self._max_tokens

    def _ms_with(self, sequence: Sequence, num_tokens: int) -> float:
        attended, skipped = self._pairs(sequence, num_tokens)
        total = self.num_tokens + num_tokens
        cells = min(self._own_cells + self._cells_of(sequence, num_tokens), self._pool_cells + total)
        return self._cost.predict_ms(total, self.attended + attended, self.skipped + skipped, cells)

    def _cells_of(self, sequence: Sequence, num_tokens: int) -> int:
        """How many cells further tokens of the sequence bring into the step; the first bring those before."""
        return num_tokens if sequence in self.parts else sequence.computed + num_tokens

    def _pairs(self, sequence: Sequence, num_tokens: int) -> tuple[int, int]:
        """Pairs of further tokens with cells of their own sequence, and with cells of other sequences."""
        start = sequence.computed + self.num_of(sequence)
        return attended_pairs(start, num_tokens), num_tokens * max(0, self._pool_cells - sequence.computed)
