"""Decides which draft tokens each sequence computes in a step, and learns whether that was worth it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from openai_cpu_server.contract.step import Drafted, Step, StepResult
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.draft_lengths import choose_lengths
from openai_cpu_server.scheduler.speculation.drafts import Drafter, ModelDrafter, SequenceDraft

_FORGET = 0.98
"""What a further step leaves of those before: some 50 count.

This guards against drafts that lose against all predictions (tests/scheduler/test_drafts.py tells when it
must act). `scripts/regress.py sensitivity speculation.speculator._TRIAL` and the other names here: where
drafts gain, no value matters.
"""
_TRIAL = 32
"""Steps with drafts before anything is said of them."""
_ENOUGH = 8
"""Steps without drafts that say how far predictions of such are off."""
_FURTHEST = 3.0
"""How many times longer, or shorter, than predicted a step may count: the rest is a noisy neighbour."""
_PAUSE_MS = 10_000.0
"""How long drafts are left after their first loss: a trial of 32 steps then costs little of it."""
_LONGEST_PAUSE_MS = 32 * _PAUSE_MS
"""After losses in a row, each of which doubles the pause: five minutes, so that other texts get a chance."""


class DraftingKind(NamedTuple):
    """A kind of steps: steps of one kind are compared with each other."""

    size: int
    """The number of sequences, in powers of two (its bit length)."""
    uses_model: bool
    """Whether the draft model takes part."""

    @classmethod
    def of(cls, num_sequences: int, *, uses_model: bool) -> DraftingKind:
        return cls(num_sequences.bit_length(), uses_model)


class ComparedStep(NamedTuple):
    """A step that was computed, in which somebody could have had a draft."""

    num_sequences: int
    num_accepted: int
    """How many draft tokens were right."""
    plain_ms: float
    """The time that it was predicted to take without drafts."""
    predicted_ms: float
    """The time that it was predicted to take as it was computed, drafting included."""
    elapsed_ms: float
    """The time that it took, drafting included."""

    @property
    def worth_ms(self) -> float:
        """The time that the same tokens were predicted to take without drafts."""
        return self.plain_ms * (1 + self.num_accepted / self.num_sequences)

    @property
    def taken_ms(self) -> float:
        """The time that it took, kept within bounds around the predicted time."""
        shortest, longest = self.predicted_ms / _FURTHEST, self.predicted_ms * _FURTHEST
        return min(max(self.elapsed_ms, shortest), longest)


class DraftGains:
    """Knows for each kind of steps whether drafts have paid, and pauses them where they have not.

    Its clock counts only the time that steps take, so that a pause does not pass while nothing is done. A
    step is compared with what the cost model predicts for it without drafts, corrected by how long steps of
    that size without drafts really take. So contexts of different lengths, and steps with prompts, can be
    compared.
    """

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._plain: dict[int, _Account] = {}
        self._trials: dict[DraftingKind, _Trial] = {}

    def allows(self, kind: DraftingKind) -> bool:
        """Whether drafts in such steps are not paused."""
        trial = self._trials.get(kind)
        return trial is None or trial.paused_until_ms <= self._now_ms

    def pass_time(self, ms: float) -> None:
        """Let the clock go on by the time that a step took."""
        self._now_ms += ms

    def learn_plain(self, done: ComparedStep) -> None:
        """Learn from a step without drafts."""
        size = DraftingKind.of(done.num_sequences, uses_model=False).size
        self._plain.setdefault(size, _Account()).book(done.worth_ms, done.taken_ms)

    def learn(self, kind: DraftingKind, done: ComparedStep) -> None:
        """Learn from a step with drafts."""
        trial = self._trials.setdefault(kind, _Trial())
        trial.learn(done, self._slowness(kind.size), self._now_ms)

    def _slowness(self, size: int) -> float:
        """Real time divided by predicted time, of steps of this size without drafts; 1.0 if unknown."""
        account = self._plain.get(size)
        return 1.0 if account is None or account.num_steps < _ENOUGH else 1.0 / account.ratio


class _Account:
    """Sums of predicted and real times, in which old steps count less and less."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._worth_ms = 0.0
        self._taken_ms = 0.0

    @property
    def ratio(self) -> float:
        """The predicted time without drafts, divided by the time that was taken: above 1 there is a gain."""
        return self._worth_ms / max(self._taken_ms, 1e-9)

    def book(self, worth_ms: float, taken_ms: float) -> None:
        self.num_steps += 1
        self._worth_ms = _FORGET * self._worth_ms + worth_ms
        self._taken_ms = _FORGET * self._taken_ms + taken_ms


class _Trial:
    """The drafts in steps of one kind. A loss pauses them for a while, the next loss for twice as long."""

    def __init__(self) -> None:
        self.paused_until_ms = 0.0
        self._pause_ms = _PAUSE_MS
        self._account = _Account()

    def learn(self, done: ComparedStep, slowness: float, now_ms: float) -> None:
        self._account.book(slowness * done.worth_ms, done.taken_ms)
        if self._account.num_steps < _TRIAL:
            return
        if self._account.ratio >= 1.0:
            self._pause_ms = _PAUSE_MS
            return
        self.paused_until_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        self._account = _Account()


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
    def of(cls, draft: SequenceDraft, length: int) -> SpanDraft:
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
        self._gains = DraftGains()

    def drafts(self, plan: StepPlan, prices: StepPrices, limits: Mapping[Sequence, int]) -> ChosenDrafts:
        """The drafts to compute in this step.

        `limits` has every sequence of the step, with the number of draft tokens that it may have.
        """
        kinds = [DraftingKind.of(len(limits), uses_model=uses_model) for uses_model in (False, True)]
        quotes, generates = (self._always or self._gains.allows(kind) for kind in kinds)
        single_ms = prices.single_ms
        found = {
            s: self._draft(s, limit, single_ms, quotes=quotes, generates=generates)
            for s, limit in limits.items()
            if s.is_decoding
        }
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
        done = ComparedStep(len(step.spans), accepted, plain_ms, predicted_ms, elapsed_ms)
        if any(span.num_drafted for span in step.spans):
            uses_model = any(span.num_to_draft for span in step.spans)
            self._gains.learn(DraftingKind.of(done.num_sequences, uses_model=uses_model), done)
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

    def _draft(
        self, sequence: Sequence, limit: int, single_ms: float, *, quotes: bool, generates: bool
    ) -> SequenceDraft:
        """The quotation, unless the draft model is more likely to be right.

        `single_ms` is the time of a step with one token. `quotes`, `generates`: whether quotations, and the
        draft model, may be used.
        """
        limit = max(0, min(limit, self._max_tokens))
        quoted = self._drafter.draft(sequence, limit)  # it learns even where nothing is to be drafted
        quoted = quoted if quotes else SequenceDraft()
        # A draft model sees nothing.
        if self._draft_model is None or not limit or not generates or sequence.request.media:
            return quoted
        generated = self._draft_model.draft(sequence, limit, single_ms)
        return max(quoted, generated, key=lambda draft: draft.chances[:1])


def with_reading(
    drafts: Mapping[Sequence, SequenceDraft], lengths: Mapping[Sequence, int], left_ms: float
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
    plan: StepPlan,
    prices: StepPrices,
    drafts: Mapping[Sequence, SequenceDraft],
    lengths: Mapping[Sequence, int],
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


def _read_first(draft: SequenceDraft, length: int, left_ms: float) -> tuple[SpanDraft, float]:
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
