"""Decides what each sequence drafts in a step, and learns whether that was worth it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from openai_cpu_server.contract.step import Drafted, Step, StepResult
from openai_cpu_server.scheduler.draft_lengths import choose_lengths
from openai_cpu_server.scheduler.drafts import Draft, Drafter, ModelDrafter
from openai_cpu_server.scheduler.gains import Done, Gains, Kind
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

_FEW_TO_READ = 16
"""Tokens that a draft model may always read: what has come since, and what was wrong of its last draft. It is
twice the longest draft of a draft model (`drafts.py`).
"""


@dataclass(frozen=True)
class SpeculationOptions:
    max_tokens: int = 31
    """That one sequence drafts in a step: with its own that is two tiles."""
    always: bool = False
    """Draft whatever there is, gain or loss (for comparison and for tests)."""


class Drafting(NamedTuple):
    """What a sequence drafts: these tokens, or so many that the draft model thinks of."""

    tokens: tuple[int, ...] = ()
    num_to_draft: int = 0
    num_to_read: int | None = None
    """By the draft model, before that; None: as many as it can."""

    @classmethod
    def of(cls, draft: Draft, length: int) -> Drafting:
        return cls(draft.tokens[:length]) if draft.tokens else cls(num_to_draft=length)

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_to_draft

    def cut(self, length: int) -> Drafting:
        """To so many tokens."""
        return Drafting(self.tokens[:length], min(self.num_to_draft, length), self.num_to_read)


class Speculator:
    """Asks the drafter what may come, the plan what it would cost."""

    def __init__(
        self, drafter: Drafter, options: SpeculationOptions, draft_model: ModelDrafter | None = None
    ) -> None:
        self._drafter = drafter
        self._options = options
        self._draft_model = draft_model
        self._gains = Gains()

    def drafts(self, plan: StepPlan, limits: Mapping[Sequence, int]) -> dict[Sequence, Drafting]:
        """What each is to draft in this step, of those that may. `limits`: tokens at most."""
        allowed = [thinks for thinks in (False, True) if self._allows(len(limits), thinks=thinks)]
        found = {s: self._draft(s, limit, plan, allowed) for s, limit in limits.items() if s.is_decoding}
        lengths = choose_lengths(plan, found, always=self._options.always)
        if any(limits.values()):
            plan.plain_ms = plan.padded_ms
        if self._options.always:
            plan.drafting_ms = sum(found[s].think_ms(length) for s, length in lengths.items())
            return {s: Drafting.of(found[s], length) for s, length in lengths.items()}
        return with_reading(plan, found, lengths)

    def compare(
        self, plan: StepPlan, step: Step, result: StepResult, predicted_ms: float, elapsed_ms: float
    ) -> None:
        """Learn from what a step has brought, and taken. `predicted_ms`: for what was computed in it."""
        self._gains.pass_time(elapsed_ms)
        if plan.plain_ms is None:
            return
        accepted = sum(drafted.num_accepted for drafted in result.drafted.values())
        done = Done(len(step.spans), accepted, plan.plain_ms, predicted_ms, elapsed_ms)
        if any(span.num_drafted for span in step.spans):
            thinks = any(span.num_to_draft for span in step.spans)
            self._gains.learn(Kind.of(done.num_sequences, thinks=thinks), done)
        else:
            self._gains.learn_plain(done)

    def learn(self, outcomes: Mapping[Sequence, Drafted], drafting_ms: float) -> None:
        """What became of drafts that the draft model was asked for in a step."""
        if self._draft_model is None or not outcomes:
            return
        for sequence, drafted in outcomes.items():
            self._draft_model.learn(sequence, drafted)
        self._draft_model.learn_price(outcomes, drafting_ms)

    def forget(self, sequence: Sequence) -> None:
        """It has finished."""
        self._drafter.forget(sequence)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)

    def _allows(self, num_sequences: int, *, thinks: bool) -> bool:
        return self._options.always or self._gains.allows(Kind.of(num_sequences, thinks=thinks))

    def _draft(self, sequence: Sequence, limit: int, plan: StepPlan, allowed: Container[bool]) -> Draft:
        """The quotation, unless the draft model is more likely to be right.

        `allowed`: whether that may be asked (True), and the quotation be used (False).
        """
        limit = max(0, min(limit, self._options.max_tokens))
        quoted = self._drafter.draft(sequence, limit)  # it learns even where nothing is to be drafted
        quoted = quoted if False in allowed else Draft()
        if self._draft_model is None or not limit or True not in allowed:
            return quoted
        thought = self._draft_model.draft(sequence, limit, plan.single_ms)
        return max(quoted, thought, key=lambda draft: draft.chances[:1])


def with_reading(
    plan: StepPlan, drafts: Mapping[Sequence, Draft], lengths: Mapping[Sequence, int]
) -> dict[Sequence, Drafting]:
    """These drafts, with what the draft model may read for them now. Books its time in the plan.

    It reads as far as the step's budget goes, for who is nearest to its end first; who is not at its end then
    drafts in a later step.
    """
    must_read = any(drafts[sequence].num_unread for sequence in lengths)
    left_ms = _left_ms(plan, drafts, lengths) if must_read else 0.0
    chosen: dict[Sequence, Drafting] = {}
    for sequence in sorted(lengths, key=lambda s: drafts[s].num_unread):
        drafting, ms = _read_first(drafts[sequence], lengths[sequence], left_ms)
        left_ms -= ms
        plan.drafting_ms += ms
        if drafting.length:
            chosen[sequence] = drafting
    plan.drafting_ms += sum(d.num_to_draft * drafts[s].token_ms for s, d in chosen.items())
    return chosen


def _left_ms(plan: StepPlan, drafts: Mapping[Sequence, Draft], lengths: Mapping[Sequence, int]) -> float:
    """Of the step's budget, behind all drafts."""
    trial = plan.copy()
    for sequence, length in lengths.items():
        trial.add_draft(sequence, length)
    thinking_ms = sum(length * drafts[sequence].token_ms for sequence, length in lengths.items())
    return max(0.0, max(plan.budget_ms, plan.padded_ms) - trial.padded_ms - thinking_ms)


def _read_first(draft: Draft, length: int, left_ms: float) -> tuple[Drafting, float]:
    """The draft, or as much reading for it as there is time for; and the time that reading takes."""
    drafting, ms = Drafting.of(draft, length), draft.num_unread * draft.read_ms
    if draft.tokens:
        return drafting, 0.0
    if ms <= left_ms or not draft.num_unread:
        return drafting._replace(num_to_read=draft.num_unread + _FEW_TO_READ), ms
    num_to_read = int(left_ms / draft.read_ms)
    if num_to_read < _FEW_TO_READ:
        return Drafting(), 0.0
    return Drafting(num_to_draft=1, num_to_read=num_to_read), num_to_read * draft.read_ms
