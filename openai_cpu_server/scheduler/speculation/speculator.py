"""Decides which draft tokens each sequence computes in a step, and learns whether that was worth it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from openai_cpu_server.contract.step import Drafted, Step, StepResult
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.draft_lengths import choose_lengths
from openai_cpu_server.scheduler.speculation.drafts import Draft, Drafter, ModelDrafter
from openai_cpu_server.scheduler.speculation.gains import Done, Gains, Kind

_FEW_TO_READ = 16
"""Tokens that a draft model may always read: what has come since, and what was wrong of its last draft. It is
twice the longest draft of a draft model (`drafts.py`).
"""


class SpanDraft(NamedTuple):
    """The draft in one span: these tokens, or the number that the draft model is to generate."""

    tokens: tuple[int, ...] = ()
    num_to_draft: int = 0
    num_to_read: int | None = None
    """How many tokens the draft model may read before that; None: as many as it can."""

    @classmethod
    def of(cls, draft: Draft, length: int) -> SpanDraft:
        """The first `length` tokens of the draft."""
        return cls(draft.tokens[:length]) if draft.tokens else cls(num_to_draft=length)

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_to_draft

    def cut(self, length: int) -> SpanDraft:
        """The same with at most `length` draft tokens."""
        return SpanDraft(self.tokens[:length], min(self.num_to_draft, length), self.num_to_read)


@dataclass(frozen=True)
class ChosenDrafts:
    """The drafts to compute in a step."""

    spans: dict[Sequence, SpanDraft] = field(default_factory=dict)
    drafting_ms: float = 0.0
    """The time that the draft model takes before the step."""
    plain_ms: float | None = None
    """The time that the step would take without drafts; None: no sequence in it could have one."""


class Speculator:
    """Chooses drafts: it asks the drafters which tokens may come, and the prices what these would cost.

    There is always a drafter that knows its tokens at once (`LookupDrafter` quotes them from the sequence);
    there may be a draft model beside it.
    """

    def __init__(
        self,
        drafter: Drafter,
        draft_model: ModelDrafter | None = None,
        *,
        max_tokens: int = 31,
        always: bool = False,
    ) -> None:
        """`max_tokens`: draft tokens of one sequence in a step, at most; 31 and its own token fill two tiles.

        `always`: compute every draft that there is, whether it pays or not (`contract.Experiment`).
        """
        self._drafter = drafter
        self._draft_model = draft_model
        self._max_tokens = max_tokens
        self._always = always
        self._gains = Gains()

    def drafts(self, plan: StepPlan, prices: StepPrices, limits: Mapping[Sequence, int]) -> ChosenDrafts:
        """The drafts to compute in this step.

        `limits` has every sequence of the step, with the number of draft tokens that it may have.
        """
        allowed = [
            uses_model for uses_model in (False, True) if self._allows(len(limits), uses_model=uses_model)
        ]
        single_ms = prices.single_ms
        found = {s: self._draft(s, limit, single_ms, allowed) for s, limit in limits.items() if s.is_decoding}
        lengths = choose_lengths(plan, prices, found, always=self._always)
        plain_ms = prices.padded_ms(plan) if any(limits.values()) else None
        if self._always:
            drafting_ms = sum(found[s].drafting_ms(length) for s, length in lengths.items())
            spans = {s: SpanDraft.of(found[s], length) for s, length in lengths.items()}
        else:
            spans, drafting_ms = with_reading(found, lengths, _left_ms(plan, prices, found, lengths))
        return ChosenDrafts(spans, drafting_ms, plain_ms)

    def compare(
        self, plain_ms: float | None, step: Step, result: StepResult, predicted_ms: float, elapsed_ms: float
    ) -> None:
        """Learn whether a step's drafts paid.

        `plain_ms` is the time predicted without drafts (`ChosenDrafts`), `predicted_ms` that for what the
        step computed, drafting included, and `elapsed_ms` is the time that it took.
        """
        self._gains.pass_time(elapsed_ms)
        if plain_ms is None:
            return
        accepted = sum(drafted.num_accepted for drafted in result.drafted.values())
        done = Done(len(step.spans), accepted, plain_ms, predicted_ms, elapsed_ms)
        if any(span.num_drafted for span in step.spans):
            uses_model = any(span.num_to_draft for span in step.spans)
            self._gains.learn(Kind.of(done.num_sequences, uses_model=uses_model), done)
        else:
            self._gains.learn_plain(done)

    def learn(self, outcomes: Mapping[Sequence, Drafted], drafting_ms: float) -> None:
        """Learn from the outcomes of a step's drafts from the draft model, and from the time that it took."""
        if self._draft_model is None or not outcomes:
            return
        for sequence, drafted in outcomes.items():
            self._draft_model.learn(sequence, drafted)
        self._draft_model.learn_price(outcomes, drafting_ms)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of the sequence, which has finished."""
        self._drafter.forget(sequence)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)

    def _allows(self, num_sequences: int, *, uses_model: bool) -> bool:
        return self._always or self._gains.allows(Kind.of(num_sequences, uses_model=uses_model))

    def _draft(self, sequence: Sequence, limit: int, single_ms: float, allowed: Container[bool]) -> Draft:
        """The quotation, unless the draft model is more likely to be right.

        `single_ms` is the time of a step with one token.
        `allowed` contains False where quotations may be used, and True where the draft model may be used.
        """
        limit = max(0, min(limit, self._max_tokens))
        quoted = self._drafter.draft(sequence, limit)  # it learns even where nothing is to be drafted
        quoted = quoted if False in allowed else Draft()
        if self._draft_model is None or not limit or True not in allowed:
            return quoted
        generated = self._draft_model.draft(sequence, limit, single_ms)
        return max(quoted, generated, key=lambda draft: draft.chances[:1])


def with_reading(
    drafts: Mapping[Sequence, Draft], lengths: Mapping[Sequence, int], left_ms: float
) -> tuple[dict[Sequence, SpanDraft], float]:
    """The drafts to compute, each with the number of tokens that the draft model may read first; and the time
    that the draft model takes.

    It reads as far as `left_ms` allows, and begins with the sequence that has the fewest unread tokens. A
    sequence that is not read to its end gets its draft in a later step.
    """
    chosen: dict[Sequence, SpanDraft] = {}
    drafting_ms = 0.0
    for sequence in sorted(lengths, key=lambda s: drafts[s].num_unread):
        span_draft, ms = _read_first(drafts[sequence], lengths[sequence], left_ms)
        left_ms -= ms
        drafting_ms += ms
        if span_draft.length:
            chosen[sequence] = span_draft
    return chosen, drafting_ms + sum(d.num_to_draft * drafts[s].token_ms for s, d in chosen.items())


def _left_ms(
    plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, Draft], lengths: Mapping[Sequence, int]
) -> float:
    """The time that is left of the step's budget once all drafts are computed; 0 if nothing must be read."""
    if not any(drafts[sequence].num_unread for sequence in lengths):
        return 0.0
    trial = plan.copy()
    for sequence, length in lengths.items():
        trial.add_draft(sequence, length)
    drafting_ms = sum(length * drafts[sequence].token_ms for sequence, length in lengths.items())
    budget_ms = max(plan.budget_ms, prices.padded_ms(plan))
    return max(0.0, budget_ms - prices.padded_ms(trial) - drafting_ms)


def _read_first(draft: Draft, length: int, left_ms: float) -> tuple[SpanDraft, float]:
    """The draft, or as much reading for it as `left_ms` allows; and the time that the reading takes."""
    span_draft, ms = SpanDraft.of(draft, length), draft.num_unread * draft.read_ms
    if draft.tokens:
        return span_draft, 0.0
    if ms <= left_ms or not draft.num_unread:
        return span_draft._replace(num_to_read=draft.num_unread + _FEW_TO_READ), ms
    num_to_read = int(left_ms / draft.read_ms)
    if num_to_read < _FEW_TO_READ:
        return SpanDraft(), 0.0
    return SpanDraft(num_to_draft=1, num_to_read=num_to_read), num_to_read * draft.read_ms
