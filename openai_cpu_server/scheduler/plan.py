"""What goes into the next step: a plan of (sequence, tokens), priced as it grows."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Protocol

from openai_cpu_server.contract.cost import attended_pairs
from openai_cpu_server.scheduler.cost_model import TILE
from openai_cpu_server.scheduler.sequence import Sequence


class StepCost(Protocol):
    """The cost model, as far as the scheduler needs it."""

    @property
    def tiled_from(self) -> int | None:
        """The step size from which all rows of a tile pay for every cell that any of them attends to."""
        ...

    def predict_ms(self, num_tokens: int, attended: int, skipped: int, cells: int | None = None) -> float:
        """`cells`: distinct ones that the step attends to."""
        ...

    def cheapest_size(self, num_tokens: int, limit: int, pool_cells: int = 0) -> int:
        """The size from `num_tokens` on, and within a tile, that takes the least time.

        The further tokens skip `pool_cells` each.
        """
        ...

    def free_size(self, num_tokens: int, limit: int) -> int:
        """The largest size within the tile that takes hardly longer."""
        ...

    def refine(
        self, num_tokens: int, attended: int, skipped: int, actual_ms: float, cells: int | None = None
    ) -> None:
        """Learn from a step that was computed."""
        ...


class StepPlan:
    """Grows by tokens of sequences; knows what the step would cost with a few more."""

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
        """`max_scored`: of the outputs, those for tokens of prompts, whose scores are wanted; None: all.

        `pads`: the step will be filled up to a size that is faster. `is_staged`: beside the pool, of which
        then nothing is skipped; `pool_cells` are those there.
        """
        self.is_staged = is_staged
        self.parts: dict[Sequence, int] = {}
        """Tokens to compute of each sequence, in the order in which they claim cells."""
        self.drafts: dict[Sequence, int] = {}
        """Draft tokens behind those."""
        self.num_tokens = 0
        self.attended = 0
        self.skipped = 0
        self.drafting_ms = 0.0
        """What a draft model takes before the step."""
        self.budget_ms = math.inf
        """What the step may take."""
        self.plain_ms: float | None = None
        """What the step would take without drafts; None: nobody in it could have one."""
        self._own_cells = 0
        """Of every sequence in the step, shared ones counted for each."""
        self._cost = cost
        self._pool_cells = pool_cells
        """Taken by all sequences, shared ones counted once: what is not one's own must be skipped."""
        self._max_tokens = max_tokens
        self._outputs_left = self._max_outputs = max_outputs
        self._scored_left = self._max_scored = max_outputs if max_scored is None else max_scored
        self._pads = pads

    def copy(self) -> StepPlan:
        """To try something out."""
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
        """The plan with these tokens of each sequence only: not all that was planned got cells."""
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
        return self._cost.predict_ms(self.num_tokens, self.attended, self.skipped, self.cells)

    @property
    def single_ms(self) -> float:
        """Of a step with one token."""
        return self._cost.predict_ms(1, 0, 0)

    @property
    def tile_token_ms(self) -> float:
        """Of a token of a step that fills a tile."""
        return self._cost.predict_ms(TILE, 0, 0) / TILE

    @property
    def bulk_token_ms(self) -> float:
        """Of a token of a step as large as may be."""
        return self._cost.predict_ms(self._max_tokens, 0, 0) / self._max_tokens

    @property
    def padded_ms(self) -> float:
        """Of the step with its padding."""
        return self.least_ms(0)

    def least_ms(self, num_further: int) -> float:
        """Of the step with padding and so many further tokens, but for what these attend to."""
        size = self.num_tokens + num_further
        if self._pads:
            size = self._cost.cheapest_size(size, self._max_tokens, self._pool_cells)
        return self._cost.predict_ms(size, self.attended, self.skipped, self.cells)

    @property
    def draft_room(self) -> int:
        """Draft tokens that the backend still takes."""
        return max(0, min(self.room, self._outputs_left))

    def num_of(self, sequence: Sequence) -> int:
        """Its tokens in the step."""
        return self.parts.get(sequence, 0) + self.drafts.get(sequence, 0)

    @property
    def cells(self) -> int:
        """Distinct cells that the step attends to, at most: those of the pool and the step's own."""
        return min(self._own_cells, self._pool_cells + self.num_tokens)

    @property
    def room(self) -> int:
        """Tokens that the backend still takes."""
        return self._max_tokens - self.num_tokens

    @property
    def least_share(self) -> int:
        """A kernel's tile of tokens; fewer where the step would begin to attend in tiles."""
        tiled_from = self._cost.tiled_from
        short = 0 if tiled_from is None else tiled_from - 1 - self.num_tokens
        return min(TILE, self.room, short if short > 0 else TILE)

    @property
    def worthwhile(self) -> int:
        """The size up to which further useful tokens cost next to nothing, or less than that."""
        cheapest = self._cost.cheapest_size(self.num_tokens, self._max_tokens)
        return max(cheapest, self._cost.free_size(self.num_tokens, self._max_tokens))

    def left_of(self, sequence: Sequence) -> int:
        """Pending tokens that are not planned yet."""
        return sequence.pending - self.parts.get(sequence, 0)

    def fit(self, sequence: Sequence, wanted: int, budget_ms: float) -> int:
        """How many of the wanted tokens fit into the budget and the backend; fewer where that is faster."""
        wanted = max(0, min(wanted, self.room, self._outputs_for(sequence)))
        if wanted and self._ms_with(sequence, wanted) > budget_ms:
            wanted = self._most(sequence, wanted, budget_ms)
        return self._before_tiles(sequence, wanted)

    def _most(self, sequence: Sequence, too_many: int, budget_ms: float) -> int:
        low, high = 0, too_many  # `low` fits, `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            if self._ms_with(sequence, middle) <= budget_ms:
                low = middle
            else:
                high = middle
        return low

    def _before_tiles(self, sequence: Sequence, num_tokens: int) -> int:
        """Where a step begins to attend in tiles its price may jump: stop short if that is faster."""
        tiled_from = self._cost.tiled_from
        short = 0 if tiled_from is None else tiled_from - 1 - self.num_tokens
        if not 0 < short < num_tokens:
            return num_tokens
        return max(short, num_tokens, key=lambda n: (self.num_tokens + n) / self._ms_with(sequence, n))

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        num_tokens = min(num_tokens, self.room, self._outputs_for(sequence))
        if num_tokens <= 0:
            return
        self._count(sequence, num_tokens)
        self.parts[sequence] = self.parts.get(sequence, 0) + num_tokens
        ends = self.left_of(sequence) == 0
        self._outputs_left -= num_tokens if sequence.is_scoring else ends
        self._scored_left -= num_tokens * sequence.is_scoring

    def add_draft(self, sequence: Sequence, num_tokens: int) -> None:
        """Behind all that is pending of the sequence. The caller has asked `draft_room`."""
        assert 0 < num_tokens <= self.draft_room
        self._count(sequence, num_tokens)
        self.drafts[sequence] = self.drafts.get(sequence, 0) + num_tokens
        self._outputs_left -= num_tokens

    def drop_draft(self, sequence: Sequence, num_tokens: int) -> None:
        """The last so many tokens of its draft were not computed."""
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
        """Tokens of the sequence that the rows of logits which are left allow."""
        if self._outputs_left <= 0:
            return 0
        return max(0, min(self._scored_left, self._outputs_left)) if sequence.is_scoring else self._max_tokens

    def _ms_with(self, sequence: Sequence, num_tokens: int) -> float:
        attended, skipped = self._pairs(sequence, num_tokens)
        total = self.num_tokens + num_tokens
        cells = min(self._own_cells + self._cells_of(sequence, num_tokens), self._pool_cells + total)
        return self._cost.predict_ms(total, self.attended + attended, self.skipped + skipped, cells)

    def _cells_of(self, sequence: Sequence, num_tokens: int) -> int:
        """Cells that further tokens of the sequence bring into the step."""
        return num_tokens if sequence in self.parts else sequence.computed + num_tokens

    def _pairs(self, sequence: Sequence, num_tokens: int) -> tuple[int, int]:
        """Pairs of these tokens with cells of their own sequence before them, and with other people's."""
        start = sequence.computed + self.num_of(sequence)
        return attended_pairs(start, num_tokens), num_tokens * max(0, self._pool_cells - sequence.computed)
