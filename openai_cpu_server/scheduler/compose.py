"""Composes a step within a time budget: who computes how many tokens. Decides; claims nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.cost_model import TILE
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
    """Budget while an interactive request is running."""
    batch_step_ms: float
    """Budget otherwise."""
    batch_floor: float
    """Share of slots and time that batch work keeps beside interactive work."""
    fills_tiles: bool = True
    mixes: bool = True
    """Decoding sequences and prompts share steps (off: for comparison only)."""


@dataclass(frozen=True)
class _Groups:
    """The running sequences by what they need, each group in the policy's order."""

    decoding: list[Sequence]
    reading: list[Sequence]
    batch_decoding: list[Sequence]
    batch_reading: list[Sequence]

    @classmethod
    def of(cls, running: Seq[Sequence]) -> _Groups:
        groups = cls([], [], [], [])
        for sequence in running:
            groups._group_of(sequence).append(sequence)
        return groups

    def _group_of(self, sequence: Sequence) -> list[Sequence]:
        if _is_interactive(sequence):
            return self.decoding if sequence.is_decoding else self.reading
        return self.batch_decoding if sequence.is_decoding else self.batch_reading

    @property
    def has_interactive(self) -> bool:
        return bool(self.decoding or self.reading)

    @property
    def has_batch(self) -> bool:
        return bool(self.batch_decoding or self.batch_reading)


@dataclass(frozen=True)
class _Worth:
    """What tokens are worth: the milliseconds that they take in the best company.

    Eight sequences decode in the time of sixteen: they are worth half of it.
    """

    decoded_token_ms: float
    prompt_token_ms: float

    def rate(self, *plans: StepPlan) -> float:
        """Worth done per millisecond by these steps, one after the other; 0: nothing is done."""
        steps = [plan for plan in plans if plan.num_tokens]
        return sum(map(self._of, steps)) / sum(plan.ms for plan in steps) if steps else 0.0

    def _of(self, plan: StepPlan) -> float:
        decoded = sum(num_tokens for sequence, num_tokens in plan.parts.items() if sequence.is_decoding)
        return decoded * self.decoded_token_ms + (plan.num_tokens - decoded) * self.prompt_token_ms


@dataclass(frozen=True)
class _Way:
    """Of computing some without the others."""

    takes: Callable[[Sequence], bool]

    def left_out(self, running: Seq[Sequence]) -> list[Sequence]:
        """Whose turn it is afterwards."""
        return [sequence for sequence in running if not self.takes(sequence)]

    def is_outranked(self, running: Seq[Sequence]) -> bool:
        """Somebody whom it takes is interactive, and nobody whom it leaves out."""
        taken = [sequence for sequence in running if self.takes(sequence)]
        return any(map(_is_interactive, taken)) and not any(map(_is_interactive, self.left_out(running)))

    def company(self, together: StepPlan, empty: StepPlan) -> StepPlan:
        """What those whom it leaves out compute if all are together, without the others."""
        company = empty.copy()
        for sequence, num_tokens in together.parts.items():
            if not self.takes(sequence):
                company.add(sequence, num_tokens)
        return company


_STAGED = _Way(takes=lambda sequence: sequence.can_be_staged)
_ALONE = _Way(takes=lambda sequence: not sequence.is_decoding)


class Composer:
    """Interactive decodes, interactive prompts, batch decodes, batch prompts, as far as the budget goes.

    Batch work that gets less than its floor builds up a credit of time. It is spent on tokens beyond a step's
    budget and, where that is not enough, on a step of its own.

    Where it is faster than all in one step, prompts have one for themselves: beside the pool those that share
    nothing, in it all of them. The others then have the next, and both together take no longer than one may;
    but where that gains much, prompts take as long as a step that nobody interactive is in, or twice as long
    if on a slow machine no smaller step gains so much.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._credit_ms = 0.0
        """Time that batch work has coming."""
        self._saving_for_ms = 0.0
        """What a step of batch work alone would take, for which there is not enough credit yet."""
        self._owed_by: _Way | None = None
        """How the step before was, for which others were left out: now it is their turn."""
        self._is_turn = False
        """The step being composed is somebody's turn, for which others are left out."""
        self._has_passed_over = False
        """The step before was a turn that left out an interactive newcomer: the next one is not."""

    @property
    def fills_tiles(self) -> bool:
        return self._options.fills_tiles and self._options.mixes

    def compose(self, plan: StepPlan, staged: StepPlan | None, running: Seq[Sequence]) -> StepPlan:
        """Fill one of the plans from the running sequences, which come in the policy's order.

        `staged`: for a step beside the pool; None: it is full, or there is none.
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
        """A step of those whom the one before has left out; batch work alone must have saved for it."""
        way, self._owed_by = self._owed_by, None
        if way is None or self._has_passed_over or way.is_outranked(running):
            return None
        others = way.left_out(running)
        return self._filled(plan.copy(), others, present) if others else None

    def _turn_of_batch(self, plan: StepPlan, running: Seq[Sequence], present: _Groups) -> StepPlan | None:
        """A step of batch work alone, once it has saved for it."""
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
        """All in one step; or prompts that share nothing beside the pool, or prompts alone, then the others.

        A step without the others is larger, and attends in tiles: with a long context that is several times
        as fast. Only for that it may take as long as one that nobody interactive is in.
        """
        together = self._filled(plan.copy(), running, present)
        worth = _Worth(plan.tile_token_ms, plan.bulk_token_ms)
        best, rate = together, worth.rate(together)
        ways = (_STAGED, staged, _WORTH_STAGING), (_ALONE, plan, _WORTH_SPLITTING)
        for way, empty, worth_it in ways:
            company = way.company(together, plan)
            same = empty is plan and not company.num_tokens
            if empty is None or same or company.num_tokens == together.num_tokens:
                continue
            taken = [sequence for sequence in running if way.takes(sequence)]
            company_ms = company.ms if company.num_tokens else 0.0
            for within, reading_ms, least_gain in self._chances(
                empty, self._reading_ms(present) - company_ms, worth_it
            ):
                if best.attends_in_tiles and within is not empty:
                    break
                apart = self._filled(
                    within.copy(), taken, present, reading_ms=reading_ms, spent_ms=company_ms
                )
                gained = worth.rate(apart, company)
                if apart.num_tokens and gained > least_gain * rate:
                    best, rate = apart, gained
                    self._owed_by = way if company.num_tokens else None
        return best

    def _chances(
        self, empty: StepPlan, reading_ms: float, least_gain: float
    ) -> list[tuple[StepPlan, float, float]]:
        """What to fill, the time that interactive prompts have, and how many times as fast it must be."""
        batch_ms = self._options.batch_step_ms
        chances = [(empty, reading_ms, least_gain), (empty, batch_ms, _WORTH_WAITING)]
        if (tiled := empty.up_to_tiles()) is not None:
            chances.append((tiled, _TILED_PATIENCE * batch_ms, _WORTH_WAITING))
        return chances

    def _filled(
        self,
        plan: StepPlan,
        running: Seq[Sequence],
        present: _Groups,
        *,
        reading_ms: float | None = None,
        spent_ms: float = 0.0,
    ) -> StepPlan:
        """From these of those who are present. `reading_ms`: for interactive prompts, if not as always;
        `spent_ms` of the other budgets is for others.
        """
        reading_ms = self._reading_ms(present) if reading_ms is None else reading_ms
        self._compose(plan, _Groups.of(running), reading_ms, spent_ms)
        if self.fills_tiles:
            _fill_tile(plan, running)
        return plan

    def account(self, plan: StepPlan, running: Seq[Sequence]) -> None:
        """Book what the step gave to batch work, once it is settled."""
        groups = _Groups.of(running)
        passed_over = (s for s in groups.reading if s.is_newcomer and s not in plan.parts)
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

    def _compose(self, plan: StepPlan, groups: _Groups, reading_ms: float, spent_ms: float) -> None:
        options = self._options
        for sequence in groups.decoding:
            plan.add(sequence, 1)
        burst_ms = min(_BURST_PATIENCE * options.interactive_step_ms, options.batch_step_ms)
        _end_bursts(plan, groups.decoding, burst_ms)
        _end_shortest(plan, groups.reading, reading_ms)
        _read_fairly(plan, groups.reading, reading_ms)
        credit_ms = min(self._credit_ms, options.interactive_step_ms)
        within_credit_ms = plan.ms + credit_ms if credit_ms and plan.num_tokens else 0.0
        self._add_batch(plan, groups, max(plan.budget_ms, within_credit_ms) - spent_ms)

    def _reading_ms(self, groups: _Groups) -> float:
        """The more requests wait for their first token, the longer may those wait who have it already."""
        if not groups.decoding:
            return self._options.batch_step_ms
        patience = 1 + 2 * len(groups.reading)
        return min(patience * self._options.interactive_step_ms, self._options.batch_step_ms)

    def _add_batch(self, plan: StepPlan, groups: _Groups, budget_ms: float) -> None:
        for sequence in groups.batch_decoding:
            plan.add(sequence, plan.fit(sequence, 1, budget_ms))
        _end_bursts(plan, [s for s in groups.batch_decoding if s in plan.parts], budget_ms)
        for sequence in groups.batch_reading:
            plan.add(sequence, plan.fit(sequence, sequence.pending, budget_ms))
        if plan.num_tokens == 0:
            _begin(plan, groups.batch_decoding + groups.batch_reading)

    def _compose_apart(self, plan: StepPlan, groups: _Groups) -> None:
        """Prompts first, alone; then everybody decodes."""
        reading = groups.reading + groups.batch_reading
        for sequence in reading:
            plan.add(sequence, plan.fit(sequence, sequence.pending, self._options.batch_step_ms))
        if plan.num_tokens == 0:
            _begin(plan, reading)
        if plan.num_tokens == 0:
            decoding = groups.decoding + groups.batch_decoding
            for sequence in decoding:
                plan.add(sequence, 1)
            _end_bursts(plan, decoding, self._options.batch_step_ms)


def _is_interactive(sequence: Sequence) -> bool:
    return sequence.request.priority is Priority.INTERACTIVE


def _end_bursts(plan: StepPlan, decoding: Seq[Sequence], budget_ms: float) -> None:
    """The forced tokens behind what each has sampled, those with the fewest first: who ends samples again."""
    for sequence in sorted(decoding, key=plan.left_of):
        plan.add(sequence, plan.fit(sequence, plan.left_of(sequence), budget_ms))


def _end_shortest(plan: StepPlan, reading: Seq[Sequence], budget_ms: float) -> None:
    """Read the shortest prompt to its end, if that is possible now and leaves a tile for the others."""
    shortest = min(reading, key=lambda s: s.pending, default=None)
    if shortest is None or (len(reading) > 1 and shortest.pending + TILE > plan.room):
        return
    if plan.fit(shortest, shortest.pending, budget_ms) == shortest.pending:
        plan.add(shortest, shortest.pending)


def _read_fairly(plan: StepPlan, reading: Seq[Sequence], budget_ms: float) -> None:
    """Half of what fits to the first in order, the rest to the shortest: nobody waits for a whole prompt.

    They get a tile at least, or what fits before a step attends in tiles, budget or not: else those who
    decode, or shorter prompts, would lock them out.
    """
    unread = [s for s in reading if plan.left_of(s) > 0]
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
    """However little the budget, something is computed: a tile of the first."""
    if sequences:
        plan.add(sequences[0], min(TILE, sequences[0].pending))


def _fill_tile(plan: StepPlan, running: Seq[Sequence]) -> None:
    """Grow with work that waits anyway to the size at hand that is cheaper, or no dearer."""
    size = plan.worthwhile if plan.num_tokens else 0
    for sequence in running:
        plan.add(sequence, min(plan.left_of(sequence), size - plan.num_tokens))
