"""Composes a step within a time budget: who computes how many tokens. Decides; claims nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.contract.cost import TILE_TOKENS
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

_WORTH_STAGING = 1.0
"""Prompts are computed beside the pool where that is no slower than in it.

`scripts/sensitivity.py compose._WORTH_STAGING`: from 0.9 to 1.15 nothing changes by more than 1 %, but for
stalls: 0.9 makes the longest one of chat 6 % longer.
"""
_WORTH_SPLITTING = 1.1
"""Prompts get a step without the others only where so many times as much is done in the same time.

`scripts/sensitivity.py compose._WORTH_SPLITTING`: from 1.0 to 1.3 nothing changes by more than 1 %.
"""
_WORTH_WAITING = 1.3
"""A step of prompts may take longer than it should only where it does so many times as much in the same time.

`scripts/sensitivity.py compose._WORTH_WAITING`: at 1.0 throughput is 3 % higher, and the longest stall 57 %
longer; 2.0 changes nothing there, and loses the tiles that `_TILED_PATIENCE` is for.
"""
_TILED_PATIENCE = 2
"""Batch budgets that the smallest step of prompts alone that attends in tiles may take.

It matters where a machine is so slow that one budget holds less than a tile of 64: there 4,000 tokens beside
8 streams were read in 64 instead of 83 s (tests/scheduler/test_turns.py has the curve).
"""
_BURST_PATIENCE = 2
"""Interactive budgets that a step with forced tokens may take: it is those who decode that gain by them.

Set by reasoning, not measured: half a tile of forced tokens takes as long as a whole one.
"""


@dataclass(frozen=True)
class StepOptions:
    """The defaults of the numbers are those of `contract.messages.EngineOptions`."""

    interactive_step_ms: float
    """A step's time budget while an interactive request is running."""
    batch_step_ms: float
    """A step's time budget while only batch requests are running."""
    batch_floor: float
    """The share of slots and time, 0 to 1, that batch work keeps beside interactive work."""
    fills_tiles: bool = True
    """Steps grow until they fill a kernel's tile, where that costs next to nothing or saves time."""
    mixes: bool = True
    """Decoding sequences and prompts share steps (off: for comparison only)."""


@dataclass(frozen=True)
class _Groups:
    """The running sequences by priority and by what they compute next, each group in the policy's order."""

    decoding: list[Sequence]
    prefilling: list[Sequence]
    batch_decoding: list[Sequence]
    batch_prefilling: list[Sequence]

    @classmethod
    def of(cls, running: Seq[Sequence]) -> _Groups:
        groups = cls([], [], [], [])
        for sequence in running:
            groups._group_of(sequence).append(sequence)
        return groups

    def _group_of(self, sequence: Sequence) -> list[Sequence]:
        if _is_interactive(sequence):
            return self.decoding if sequence.is_decoding else self.prefilling
        return self.batch_decoding if sequence.is_decoding else self.batch_prefilling

    @property
    def has_interactive(self) -> bool:
        return bool(self.decoding or self.prefilling)

    @property
    def has_batch(self) -> bool:
        return bool(self.batch_decoding or self.batch_prefilling)


@dataclass(frozen=True)
class _FullStepPrices:
    """What a token costs in a full step, in milliseconds: a tile of decodes, or the largest step of a prompt.

    Steps that differ in what they compute are compared by these prices. If 8 sequences take as long as 16 to
    decode, their step has an efficiency of one half.
    """

    decode_ms: float
    prefill_ms: float

    def efficiency(self, *plans: StepPlan) -> float:
        """What the steps' tokens cost at these prices, divided by the time that the steps take together.

        It is 0 if nothing is computed.
        """
        steps = [plan for plan in plans if plan.num_tokens]
        return sum(map(self._price_of, steps)) / sum(plan.ms for plan in steps) if steps else 0.0

    def _price_of(self, plan: StepPlan) -> float:
        decoded = sum(num_tokens for sequence, num_tokens in plan.parts.items() if sequence.is_decoding)
        return decoded * self.decode_ms + (plan.num_tokens - decoded) * self.prefill_ms


@dataclass(frozen=True)
class _Split:
    """A way to divide the running sequences over two steps: some prompts first, then the others."""

    is_first: Callable[[Sequence], bool]
    """Whether a sequence belongs to the first step."""

    def first(self, running: Seq[Sequence]) -> list[Sequence]:
        return [sequence for sequence in running if self.is_first(sequence)]

    def others(self, running: Seq[Sequence]) -> list[Sequence]:
        return [sequence for sequence in running if not self.is_first(sequence)]

    def leaves_out_only_batch(self, running: Seq[Sequence]) -> bool:
        """Whether interactive sequences belong to the first step, and none to the second."""
        first, others = self.first(running), self.others(running)
        return any(map(_is_interactive, first)) and not any(map(_is_interactive, others))

    def second_step(self, together: StepPlan, empty: StepPlan) -> StepPlan:
        """The part of the common step that the others compute, as a step of its own."""
        second = empty.copy()
        for sequence, num_tokens in together.parts.items():
            if not self.is_first(sequence):
                second.add(sequence, num_tokens)
        return second


_STAGED = _Split(is_first=lambda sequence: sequence.can_be_staged)
"""Prompts that have no cells in the pool are computed beside it, where they need not skip others' cells."""
_ALONE = _Split(is_first=lambda sequence: not sequence.is_decoding)
"""All prompts are computed in the pool, but without the decoding sequences."""


class Composer:
    """Chooses who takes part in each step, and with how many tokens.

    A step is filled in this order: interactive decodes, interactive prompts, batch decodes, batch prompts.
    Each interactive decode in it gets its token in any case; the rest is added as far as the time budget
    allows.

    There are three ways to make a step with prompts; the one that computes most for its time is taken:

    - All together.
    - Prompts beside the pool: those that have no cells in the pool get a step of their own beside it.
    - Prompts alone: all prompts get a step of their own in the pool. There is time for more tokens, and a
      large step may attend in tiles, which is several times as fast where the context is long.

    A turn is a step for some sequences only, because they were left out before. Turns come first:

    1. Those who were left out of a step of prompts have the next step. If they are all batch work, and a
       prompt is interactive, they need credit instead.
    2. Batch work has a step of its own as soon as its credit pays for one.

    After a turn that left out an interactive newcomer the next step is no turn.

    Batch work earns credit, in milliseconds, while it runs beside interactive work: `batch_floor` times the
    time of each step. It pays for the tokens that it computes in each step. What is left it spends on tokens
    beyond a step's budget, or saves for a step of its own.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._credit_ms = 0.0
        """The time that batch work has earned and not spent."""
        self._saving_for_ms = 0.0
        """What the last step planned for batch work alone would take: credit may grow that far at least."""
        self._split_before: _Split | None = None
        """The split whose first step was composed last, so that the others have the next; None: no split."""
        self._is_turn = False
        """Whether the step that was composed last is a turn."""
        self._has_passed_over = False
        """Whether that was a turn without an interactive newcomer, so that the next step must not be one."""

    @property
    def fills_tiles(self) -> bool:
        return self._options.fills_tiles and self._options.mixes

    def compose(self, plan: StepPlan, staged: StepPlan | None, running: Seq[Sequence]) -> StepPlan:
        """Fill one of the plans, both empty, with tokens of the running sequences.

        These come in the policy's order. `staged` is a plan for a step beside the pool; it is None if there
        is no room there.
        """
        options, present = self._options, _Groups.of(running)
        plan.budget_ms = options.interactive_step_ms if present.has_interactive else options.batch_step_ms
        if not options.mixes:
            self._compose_apart(plan, present)
            return plan
        turn = self._turn_of_others(plan, running, present) or self._turn_of_batch(plan, running, present)
        self._is_turn = turn is not None
        if turn is not None:
            return turn
        if all(sequence.is_decoding for sequence in running):
            return self._filled(plan, running, present)
        if staged is not None:
            staged.budget_ms = plan.budget_ms
        return self._best(plan, staged, running, present)

    def _turn_of_others(self, plan: StepPlan, running: Seq[Sequence], present: _Groups) -> StepPlan | None:
        """A step for those whom a step of prompts has just left out; None if nobody has a right to it.

        If they are all batch work, and an interactive prompt (also a newcomer's) waits, they have none: batch
        work then needs credit.
        """
        split, self._split_before = self._split_before, None
        if split is None or self._has_passed_over or split.leaves_out_only_batch(running):
            return None
        others = split.others(running)
        return self._filled(plan.copy(), others, present) if others else None

    def _turn_of_batch(self, plan: StepPlan, running: Seq[Sequence], present: _Groups) -> StepPlan | None:
        """A step of batch work alone, if its credit pays for one."""
        is_due = self._credit_ms > 0 and present.has_batch and present.has_interactive
        if not is_due or self._has_passed_over:
            return None
        batch = [sequence for sequence in running if not _is_interactive(sequence)]
        turn = self._filled(plan.copy(), batch, present)
        self._saving_for_ms = turn.ms
        return turn if turn.ms <= self._credit_ms else None

    def _best(
        self, plan: StepPlan, staged: StepPlan | None, running: Seq[Sequence], present: _Groups
    ) -> StepPlan:
        """The most efficient of: all together, prompts beside the pool, prompts alone.

        Prompts apart count together with the step that the others have afterwards.
        """
        together = self._filled(plan.copy(), running, present)
        prices = _FullStepPrices(plan.tile_token_ms, plan.bulk_token_ms)
        best, efficiency = together, prices.efficiency(together)
        splits = (_STAGED, staged, _WORTH_STAGING), (_ALONE, plan, _WORTH_SPLITTING)
        for split, empty, worth_it in splits:
            second = split.second_step(together, plan)
            is_together = empty is plan and not second.num_tokens
            if empty is None or is_together or second.num_tokens == together.num_tokens:
                continue
            first = split.first(running)
            second_ms = second.ms if second.num_tokens else 0.0
            for within, prefill_ms, least_gain in self._attempts(
                empty, self._prefill_ms(present) - second_ms, worth_it
            ):
                if best.attends_in_tiles and within is not empty:
                    break
                apart = self._filled(within.copy(), first, present, prefill_ms=prefill_ms, spent_ms=second_ms)
                reached = prices.efficiency(apart, second)
                if apart.num_tokens and reached > least_gain * efficiency:
                    best, efficiency = apart, reached
                    self._split_before = split if second.num_tokens else None
        return best

    def _attempts(
        self, empty: StepPlan, prefill_ms: float, least_gain: float
    ) -> list[tuple[StepPlan, float, float]]:
        """How a step of prompts may be filled: (empty plan, milliseconds for prompts, least gain).

        First it has `prefill_ms`, the usual time less that of the others' step. Then it may take as long as a
        batch step, if it gains much by that. Last, for slow machines, it may take longer still, but with no
        more tokens than it needs to attend in tiles.
        """
        batch_ms = self._options.batch_step_ms
        attempts = [(empty, prefill_ms, least_gain), (empty, batch_ms, _WORTH_WAITING)]
        if (tiled := empty.up_to_tiles()) is not None:
            attempts.append((tiled, _TILED_PATIENCE * batch_ms, _WORTH_WAITING))
        return attempts

    def _filled(
        self,
        plan: StepPlan,
        running: Seq[Sequence],
        present: _Groups,
        *,
        prefill_ms: float | None = None,
        spent_ms: float = 0.0,
    ) -> StepPlan:
        """Fill the plan from `running`: from all sequences that are present, or from some of them.

        `prefill_ms` is the time budget for interactive prompts, None for the usual one. `spent_ms` is taken
        off the budget for batch work.
        """
        prefill_ms = self._prefill_ms(present) if prefill_ms is None else prefill_ms
        self._compose(plan, _Groups.of(running), prefill_ms, spent_ms)
        if self.fills_tiles:
            _fill_tile(plan, running)
        return plan

    def account(self, plan: StepPlan, running: Seq[Sequence]) -> None:
        """Book what batch work earns and spends in a step whose tokens are final.

        It spends the same share of the predicted time as it has of the tokens. Its credit is never negative,
        and is limited to one step of batch work. It lapses when batch and interactive work do not run
        together, or when nothing is computed.
        """
        groups = _Groups.of(running)
        passed_over = (s for s in groups.prefilling if s.is_newcomer and s not in plan.parts)
        self._has_passed_over = self._is_turn and any(passed_over)
        if not (groups.has_batch and groups.has_interactive) or not plan.num_tokens:
            self._credit_ms = 0.0
            return
        batch_tokens = sum(plan.num_of(s) for s in plan.parts if not _is_interactive(s))
        step_ms = plan.ms
        spent = step_ms * batch_tokens / plan.num_tokens
        credit = self._credit_ms + self._options.batch_floor * step_ms - spent
        most_ms = max(self._options.batch_step_ms, self._saving_for_ms)
        self._credit_ms = min(max(credit, 0.0), most_ms)

    def _compose(self, plan: StepPlan, groups: _Groups, prefill_ms: float, spent_ms: float) -> None:
        options = self._options
        for sequence in groups.decoding:
            plan.add(sequence, 1)
        forced_ms = min(_BURST_PATIENCE * options.interactive_step_ms, options.batch_step_ms)
        _add_forced(plan, groups.decoding, forced_ms)
        _end_shortest(plan, groups.prefilling, prefill_ms)
        _prefill_fairly(plan, groups.prefilling, prefill_ms)
        credit_ms = min(self._credit_ms, options.interactive_step_ms)
        within_credit_ms = plan.ms + credit_ms if credit_ms and plan.num_tokens else 0.0
        self._add_batch(plan, groups, max(plan.budget_ms, within_credit_ms) - spent_ms)

    def _prefill_ms(self, groups: _Groups) -> float:
        """The time that a step with interactive prompts may take, in milliseconds.

        It is the budget of a batch step if no interactive sequence decodes. Else it is the interactive
        budget, and twice that again for each prompt, up to that of a batch step: the more requests wait for
        their first token, the longer may those wait that decode already.
        """
        if not groups.decoding:
            return self._options.batch_step_ms
        patience = 1 + 2 * len(groups.prefilling)
        return min(patience * self._options.interactive_step_ms, self._options.batch_step_ms)

    def _add_batch(self, plan: StepPlan, groups: _Groups, budget_ms: float) -> None:
        for sequence in groups.batch_decoding:
            plan.add(sequence, plan.fit(sequence, 1, budget_ms))
        _add_forced(plan, [s for s in groups.batch_decoding if s in plan.parts], budget_ms)
        for sequence in groups.batch_prefilling:
            plan.add(sequence, plan.fit(sequence, sequence.pending, budget_ms))
        if plan.num_tokens == 0:
            _begin(plan, groups.batch_decoding + groups.batch_prefilling)

    def _compose_apart(self, plan: StepPlan, groups: _Groups) -> None:
        """Fill the plan with prompts alone; with decodes only if no prompt is left."""
        prefilling = groups.prefilling + groups.batch_prefilling
        for sequence in prefilling:
            plan.add(sequence, plan.fit(sequence, sequence.pending, self._options.batch_step_ms))
        if plan.num_tokens == 0:
            _begin(plan, prefilling)
        if plan.num_tokens == 0:
            decoding = groups.decoding + groups.batch_decoding
            for sequence in decoding:
                plan.add(sequence, 1)
            _add_forced(plan, decoding, self._options.batch_step_ms)


def _is_interactive(sequence: Sequence) -> bool:
    return sequence.request.priority is Priority.INTERACTIVE


def _add_forced(plan: StepPlan, decoding: Seq[Sequence], budget_ms: float) -> None:
    """Add the tokens that constraints have forced behind a sampled one, as many as the budget allows.

    Sequences with the fewest go first: who has computed all of them samples again.
    """
    for sequence in sorted(decoding, key=plan.left_of):
        plan.add(sequence, plan.fit(sequence, plan.left_of(sequence), budget_ms))


def _end_shortest(plan: StepPlan, prefilling: Seq[Sequence], budget_ms: float) -> None:
    """Add the rest of the shortest prompt, if the budget allows that and others keep room for a tile."""
    shortest = min(prefilling, key=lambda s: s.pending, default=None)
    if shortest is None or (len(prefilling) > 1 and shortest.pending + TILE_TOKENS > plan.room):
        return
    if plan.fit(shortest, shortest.pending, budget_ms) == shortest.pending:
        plan.add(shortest, shortest.pending)


def _prefill_fairly(plan: StepPlan, prefilling: Seq[Sequence], budget_ms: float) -> None:
    """Give half of what fits to the first prompt in order, and the rest to the shortest ones.

    So no prompt waits for the whole of another. Together they get `least_share` tokens, even beyond the
    budget: else decodes, or shorter prompts, could lock them out.
    """
    unread = [s for s in prefilling if plan.left_of(s) > 0]
    if not unread:
        return
    first, shortest = unread[0], min(unread, key=plan.left_of)
    fits = max(plan.fit(first, sum(map(plan.left_of, unread)), budget_ms), plan.least_share)
    share = fits if first is shortest else -(-fits // 2)
    end = plan.num_tokens + fits
    plan.add(first, min(share, plan.left_of(first)))
    for sequence in sorted(unread, key=plan.left_of):
        plan.add(sequence, min(plan.left_of(sequence), end - plan.num_tokens))


def _begin(plan: StepPlan, sequences: Seq[Sequence]) -> None:
    """Add a tile of the first sequence, so that something is computed however small the budget is."""
    if sequences:
        plan.add(sequences[0], min(TILE_TOKENS, sequences[0].pending))


def _fill_tile(plan: StepPlan, running: Seq[Sequence]) -> None:
    """Grow the step with pending tokens as far as these cost next to nothing, or save time."""
    size = plan.worthwhile if plan.num_tokens else 0
    for sequence in running:
        plan.add(sequence, min(plan.left_of(sequence), size - plan.num_tokens))
