"""Composes a step within a time budget: who computes how many tokens. Decides; claims nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.cost_model import TILE
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

_WORTH_STAGING_ONE, _WORTH_STAGING_SEVERAL = 1.03, 0.97
"""How many times as much must be done in the same time beside the pool. Cells are to be moved afterwards; but
of several prompts each is in the way of the others, and soon that of all who decode.
"""
_BURST_PATIENCE = 2
"""Interactive budgets that a step with forced tokens may take: it is those who decode that gain by them."""


@dataclass(frozen=True)
class StepOptions:
    interactive_step_ms: float = 130.0
    """Budget while an interactive request is running."""
    batch_step_ms: float = 600.0
    """Budget otherwise."""
    batch_floor: float = 0.1
    """Share of the time that batch work keeps, whatever comes."""
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
        if sequence.request.priority is Priority.BATCH:
            return self.batch_decoding if sequence.is_decoding else self.batch_reading
        return self.decoding if sequence.is_decoding else self.reading

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

    def of(self, plan: StepPlan) -> float:
        decoded = sum(num_tokens for sequence, num_tokens in plan.parts.items() if sequence.is_decoding)
        return decoded * self.decoded_token_ms + (plan.num_tokens - decoded) * self.prompt_token_ms


class Composer:
    """Interactive decodes, interactive prompts, batch decodes, batch prompts, as far as the budget goes.

    Batch work that was left out builds up a credit of time, which a later step must spend on it.

    Prompts that share nothing are computed beside the pool where that is faster than in one step with all
    others. Those then have the next step, and both together take no longer than one step may.
    """

    def __init__(self, options: StepOptions) -> None:
        self._options = options
        self._credit_ms = 0.0
        self._owes_others = False
        """The step before was beside the pool: now it is the turn of those who were left out for it."""

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
        fresh = [s for s in running if s.can_be_staged] if staged is not None else []
        owes_others, self._owes_others = self._owes_others, False
        if staged is None or not fresh:
            return self._filled(plan, running, present)
        others = [s for s in running if not s.can_be_staged]
        if owes_others and others and min(map(_priority, others)) <= min(map(_priority, fresh)):
            return self._filled(plan, others, present)
        staged.budget_ms = plan.budget_ms
        return self._better(plan, staged, fresh, running, present)

    def _better(
        self, plan: StepPlan, staged: StepPlan, fresh: Seq[Sequence], running: Seq[Sequence], present: _Groups
    ) -> StepPlan:
        """All in one step, or those whose prompts share nothing beside the pool and then the others."""
        together, company = self._filled(plan.copy(), running, present), plan.copy()
        for sequence, num_tokens in together.parts.items():
            if not sequence.can_be_staged:
                company.add(sequence, num_tokens)
        company_ms = company.ms if company.parts else 0.0
        self._filled(staged, fresh, present, spent_ms=company_ms)
        num_fresh = together.num_tokens - company.num_tokens
        if not num_fresh or not staged.num_tokens:
            return together
        worth = _Worth(plan.tile_token_ms, plan.bulk_token_ms)
        apart = (worth.of(staged) + worth.of(company)) / (staged.ms + company_ms)
        least = _WORTH_STAGING_ONE if len(fresh) == 1 else _WORTH_STAGING_SEVERAL
        if apart <= least * worth.of(together) / together.ms:
            return together
        self._owes_others = bool(company.parts)
        return staged

    def _filled(
        self, plan: StepPlan, running: Seq[Sequence], present: _Groups, *, spent_ms: float = 0.0
    ) -> StepPlan:
        """From these of those who are present; `spent_ms` of every budget is for others."""
        self._compose(plan, _Groups.of(running), present, spent_ms)
        if self.fills_tiles:
            _fill_tile(plan, running)
        return plan

    def account(self, plan: StepPlan, running: Seq[Sequence]) -> None:
        """Book what the step gave to batch work, once it is settled."""
        groups = _Groups.of(running)
        if not (groups.has_batch and groups.has_interactive) or not plan.num_tokens:
            self._credit_ms = 0.0
            return
        batch_tokens = sum(plan.num_of(s) for s in plan.parts if s.request.priority is Priority.BATCH)
        step_ms = plan.ms
        spent = step_ms * batch_tokens / plan.num_tokens
        credit = self._credit_ms + self._options.batch_floor * step_ms - spent
        self._credit_ms = min(max(credit, 0.0), self._options.batch_step_ms)

    def _compose(self, plan: StepPlan, groups: _Groups, present: _Groups, spent_ms: float) -> None:
        options = self._options
        for sequence in groups.decoding:
            plan.add(sequence, 1)
        burst_ms = min(_BURST_PATIENCE * options.interactive_step_ms, options.batch_step_ms)
        _end_bursts(plan, groups.decoding, burst_ms)
        reading_ms = self._reading_ms(present) - spent_ms
        _end_shortest(plan, groups.reading, reading_ms)
        _read_fairly(plan, groups.reading, reading_ms)
        credit_ms = plan.ms + self._credit_ms if self._credit_ms else 0.0
        self._add_batch(plan, groups, max(plan.budget_ms, credit_ms) - spent_ms)

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


def _priority(sequence: Sequence) -> Priority:
    return sequence.request.priority


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

    They get a tile at least, budget or not: else those who decode, or shorter prompts, would lock them out.
    """
    unread = [s for s in reading if plan.left_of(s) > 0]
    if not unread:
        return
    first, shortest = unread[0], min(unread, key=plan.left_of)
    fits = max(plan.fit(first, sum(map(plan.left_of, unread)), budget_ms), min(TILE, plan.room))
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
