"""Choice of the draft tokens of each sequence in a step. Constants are results of `scripts/regress.py streams
speculation.speculator.NAME`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from operator import itemgetter
from typing import NamedTuple

from openai_cpu_server.contract.messages import DraftingState
from openai_cpu_server.contract.model_info import TILE_TOKENS
from openai_cpu_server.contract.step import Drafted, Step, StepResult
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.drafts import Drafter, ModelDrafter, SequenceDraft

_FORGET = 0.98
"""Decay of steps, so that about 50 count, against drafts that lose despite predictions
(tests/scheduler/test_drafts.py). Where drafts gain, the values do not matter."""
_TRIAL = 32
_ENOUGH = 8
"""Steps without drafts from which the error of predictions is known."""
_FURTHEST = 3.0
"""Maximum factor of counted time; a noisy neighbour causes the rest."""
_PAUSE_MS = 10_000.0
"""Pause after a first loss, which is long compared with a trial of 32 steps."""
_MOST_LOSS = 0.01
"""Share of a pause that the time lost in its trial may be."""
_CLEAR = 8
"""Minimum steps of a trial that is clearly lost."""
_CLEAR_LOSS = 0.8
_IDLE = 64
"""Steps without a promising draft after which a head does not read along."""
_FIRST_TRIES = 4
"""Tokens of a head in a step until some have shown whether it is right."""
_LONGEST_PAUSE_MS = 32 * _PAUSE_MS
"""Maximum pause, which each loss in a row doubles, so that other texts get a chance."""


class DraftingKind(NamedTuple):
    size: int
    """Number of sequences in powers of two (its bit length)."""
    uses_model: bool

    @classmethod
    def of(cls, num_sequences: int, *, uses_model: bool) -> DraftingKind:
        return cls(num_sequences.bit_length(), uses_model)


class ComparedStep(NamedTuple):
    """A computed step in which a sequence could have had a draft."""

    num_sequences: int
    num_accepted: int
    plain_ms: float
    predicted_ms: float
    """Time of the actual step, with drafting as in `elapsed_ms`."""
    elapsed_ms: float

    @property
    def worth_ms(self) -> float:
        return self.plain_ms * (1 + self.num_accepted / self.num_sequences)

    @property
    def taken_ms(self) -> float:
        shortest, longest = self.predicted_ms / _FURTHEST, self.predicted_ms * _FURTHEST
        return min(max(self.elapsed_ms, shortest), longest)


@dataclass(eq=False)
class DraftGains:
    """Record of the benefit of drafts, which pauses those that do not pay. Each step is compared with its
    prediction without drafts, so that contexts and prompts do not matter."""

    _now_ms: float = 0.0
    _plain: dict[int, _Account] = field(default_factory=dict)
    _trials: dict[DraftingKind, _DraftPause] = field(default_factory=dict)

    def allows(self, kind: DraftingKind) -> bool:
        trial = self._trials.get(kind)
        return trial is None or trial.paused_until_ms <= self._now_ms

    def pass_time(self, ms: float) -> None:
        self._now_ms += ms

    def learn_plain(self, done: ComparedStep) -> None:
        size = DraftingKind.of(done.num_sequences, uses_model=False).size
        self._plain.setdefault(size, _Account()).book(done.worth_ms, done.taken_ms)

    def learn(self, kind: DraftingKind, done: ComparedStep) -> None:
        plain = self._plain.get(kind.size)
        slowness = 1.0 if plain is None or plain.num_steps < _ENOUGH else 1.0 / plain.ratio
        self._trials.setdefault(kind, _DraftPause()).learn(done, slowness, self._now_ms)

    def pass_over(self, kind: DraftingKind) -> bool:
        """Note a step without a promising draft. Return True if that begins a pause."""
        return self._trials.setdefault(kind, _DraftPause()).pass_over(self._now_ms)

    def charge(self, kind: DraftingKind, ms: float) -> None:
        self._trials.setdefault(kind, _DraftPause()).charge(ms)

    def states(self, *, uses_model: bool) -> tuple[DraftingState, ...]:
        found = sorted(
            ((kind.size, trial) for kind, trial in self._trials.items() if kind.uses_model is uses_model),
            key=itemgetter(0),
        )
        return tuple(
            DraftingState(
                sequences=1 << (size - 1),
                drafts=(drafts := self.allows(DraftingKind(size, uses_model))),
                why=trial.why if not drafts else "",
                gain=round(trial.gain, 3),
            )
            for size, trial in found
        )


@dataclass(eq=False)
class _Account:
    num_steps: int = 0
    _worth_ms: float = 0.0
    _taken_ms: float = 0.0

    @property
    def ratio(self) -> float:
        """Above 1 drafts gain."""
        return self._worth_ms / max(self._taken_ms, 1e-9)

    def charge(self, ms: float) -> None:
        self._taken_ms += ms

    def book(self, worth_ms: float, taken_ms: float) -> None:
        self.num_steps += 1
        self._worth_ms = _FORGET * self._worth_ms + worth_ms
        self._taken_ms = _FORGET * self._taken_ms + taken_ms


class _DraftPause:
    """A loss pauses drafts, and the next loss for twice as long."""

    def __init__(self) -> None:
        self.paused_until_ms = 0.0
        self.gain = 1.0
        self.why = ""
        self._pause_ms = _PAUSE_MS
        self._account = _Account()
        self._lost_ms = 0.0
        self._num_idle = 0

    def learn(self, done: ComparedStep, slowness: float, now_ms: float) -> None:
        self._num_idle = 0
        self._account.book(slowness * done.worth_ms, done.taken_ms)
        self._lost_ms += done.taken_ms - slowness * done.worth_ms
        num_steps, self.gain = self._account.num_steps, self._account.ratio
        if num_steps < _CLEAR or (num_steps < _TRIAL and self.gain >= _CLEAR_LOSS):
            return
        if self.gain >= 1.0:
            self._pause_ms, self._lost_ms = _PAUSE_MS, 0.0
            return
        self._pause(now_ms, f"they lost {100 * (1 - self.gain):.0f} % of the time")

    def charge(self, ms: float) -> None:
        self._account.charge(ms)
        self._lost_ms += ms

    def pass_over(self, now_ms: float) -> bool:
        self._num_idle += 1
        if self._num_idle < _IDLE:
            return False
        self._pause(now_ms, "none was predicted to gain time")
        return True

    def _pause(self, now_ms: float, why: str) -> None:
        pause_ms = max(self._pause_ms, self._lost_ms / _MOST_LOSS)
        self.paused_until_ms, self.why = now_ms + pause_ms, why
        self._pause_ms = min(2 * self._pause_ms, _LONGEST_PAUSE_MS)
        self._account, self._lost_ms, self._num_idle = _Account(), 0.0, 0


_WORTH = 0.95
"""Maximum predicted relative time per token with drafts. At 0.85 quotations lose 4 %; at 1.0 nothing is
gained."""
_LEAST_CHANCE = 0.02
"""Minimum probability of reaching a draft token. 0.005 to 0.1 changes nothing."""


@dataclass(frozen=True)
class _DraftToken:
    sequence: Sequence
    gain: float
    """Reduction of the time per token, in steps."""
    place: int
    draft: SequenceDraft


def choose_lengths(
    plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, SequenceDraft], *, always: bool
) -> dict[Sequence, int]:
    """Return the lengths above 0 that minimise the mean of T / (1 + g): the step's time by a sequence's
    expected correct drafts. `always`: compute all drafts that fit."""
    if not always and not _can_pay(plan, prices, drafts):
        return {}
    tokens = sorted((t for s, d in drafts.items() for t in _draft_tokens(s, d)), key=lambda t: -t.gain)
    if always:
        return Counter(token.sequence for token in tokens[: plan.draft_room])
    quoted = [token for token in tokens if token.draft.tokens]
    ways = [tokens] if len(quoted) == len(tokens) else [quoted, tokens]
    choices = [_most_worth(plan, prices, way[: plan.draft_room]) for way in ways]
    _, chosen = min(choices, key=lambda choice: choice[0])
    return Counter(token.sequence for token in chosen)


def _can_pay(plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, SequenceDraft]) -> bool:
    """Return True if correct, free drafts could pay. If m sequences share c draft tokens evenly, each needs m
    / (m + c) steps per token."""
    lengths = [len(draft.chances) for draft in drafts.values() if draft.chances]
    most, num_drafting = min(plan.draft_room, sum(lengths)), len(lengths)
    if most <= 0:
        return False
    num_others, last_ms = len(plan.parts) - num_drafting, math.inf
    goal_ms = _WORTH * len(plan.parts) * prices.padded_ms(plan)
    doublings = (1 << power for power in range((most - 1).bit_length()))
    for count in (*doublings, most):
        ms = prices.padded_ms(plan, count)
        steps_per_token = num_others + num_drafting**2 / (num_drafting + count)
        if steps_per_token * min(ms, last_ms) < goal_ms:
            return True
        last_ms = ms
    return False


def _most_worth(
    plan: StepPlan, prices: StepPrices, tokens: list[_DraftToken]
) -> tuple[float, list[_DraftToken]]:
    if not tokens:
        return math.inf, []
    trial, steps_per_token, drafting_ms = plan.copy(), float(len(plan.parts)), 0.0
    plain_ms = prices.padded_ms(plan)
    limit_ms = max(plan.budget_ms, plain_ms)
    fits = _fitting(plan, prices, len(tokens), limit_ms)
    best, best_ms = 0, _WORTH * steps_per_token * plain_ms
    calls: Counter[int] = Counter()
    for count, token in enumerate(tokens, 1):
        trial.add_draft(token.sequence, 1)
        steps_per_token -= token.gain
        if not token.draft.tokens:
            drafting_ms += token.draft.ms_at(calls[token.place]) + (
                0 if token.place else token.draft.first_ms
            )
            calls[token.place] += 1
        # Step times climb in stairs, and each prediction takes time. So only ends of tiles,
        # powers of two and the last token are examined.
        is_end_of_tile, is_power_of_two = trial.num_tokens % TILE_TOKENS == 0, count & (count - 1) == 0
        if is_end_of_tile or is_power_of_two or count in (fits, len(tokens)):
            step_ms = prices.padded_ms(trial) + drafting_ms
            if step_ms <= limit_ms:
                best_ms, best = min((best_ms, best), (steps_per_token * step_ms, count))
            elif count > fits:
                break
    return best_ms, tokens[:best]


def _fitting(plan: StepPlan, prices: StepPrices, num_further: int, limit_ms: float) -> int:
    if prices.padded_ms(plan, num_further) <= limit_ms:
        return num_further
    return bisect_right(range(1, num_further), limit_ms, key=lambda count: prices.padded_ms(plan, count))


def _draft_tokens(sequence: Sequence, draft: SequenceDraft) -> Iterator[_DraftToken]:
    reached, expected = 1.0, 1.0
    for place, chance in enumerate(draft.chances):
        reached *= chance
        if reached < _LEAST_CHANCE:
            return
        yield _DraftToken(sequence, 1 / expected - 1 / (expected + reached), place, draft)
        expected += reached


def _first_tries(
    drafts: Mapping[Sequence, SequenceDraft], lengths: Mapping[Sequence, int]
) -> dict[Sequence, int]:
    generated = [sequence for sequence in lengths if not drafts[sequence].tokens]
    tries = dict.fromkeys(generated[:_FIRST_TRIES], 1)
    return {s: length for s, length in lengths.items() if drafts[s].tokens} | tries


def _calls_ms(drafts: Mapping[Sequence, SequenceDraft], lengths: Mapping[Sequence, int]) -> float:
    total_ms, calls = 0.0, Counter[int]()
    for sequence, length in lengths.items():
        for place in range(length if not drafts[sequence].tokens else 0):
            total_ms += drafts[sequence].ms_at(calls[place])
            calls[place] += 1
    return total_ms


_FEW_TO_READ = 16
"""Tokens that a draft model may always read: twice its longest draft, because some of the last were wrong."""


class SpanDraft(NamedTuple):
    tokens: tuple[int, ...] = ()
    num_to_draft: int = 0
    num_to_read: int | None = None

    @classmethod
    def of(cls, draft: SequenceDraft, length: int) -> SpanDraft:
        return cls(draft.tokens[:length]) if draft.tokens else cls(num_to_draft=length)

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_to_draft

    def cut(self, length: int) -> SpanDraft:
        return SpanDraft(self.tokens[:length], min(self.num_to_draft, length), self.num_to_read)


@dataclass(frozen=True)
class ChosenDrafts:
    spans: dict[Sequence, SpanDraft] = field(default_factory=dict)
    drafting_ms: float = 0.0
    plain_ms: float | None = None
    """Predicted time without drafts, or None if no sequence could have one."""
    reads_along: bool = True


@dataclass(eq=False)
class Speculator:
    drafter: Drafter
    draft_model: ModelDrafter | None = None
    _: KW_ONLY
    max_tokens: int = 31
    """Draft tokens of one sequence; 31 and its own token fill two tiles."""
    always: bool = False
    _gains: DraftGains = field(default_factory=DraftGains)

    def drafts(self, plan: StepPlan, prices: StepPrices, limits: Mapping[Sequence, int]) -> ChosenDrafts:
        kinds = [DraftingKind.of(len(limits), uses_model=uses_model) for uses_model in (False, True)]
        quotes, generates = (self.always or self._gains.allows(kind) for kind in kinds)
        found = {
            s: self._draft(s, limit, prices, len(limits), quotes=quotes, generates=generates)
            for s, limit in limits.items()
            if s.is_decoding
        }
        lengths = choose_lengths(plan, prices, found, always=self.always)
        if self.draft_model is not None and self.draft_model.is_untried_head and not self.always:
            lengths = _first_tries(found, lengths)
        plain_ms = prices.padded_ms(plan) if any(limits.values()) else None
        if self.always:
            drafting_ms = _calls_ms(found, lengths) + sum(found[s].first_ms for s in lengths)
            spans = {s: SpanDraft.of(found[s], length) for s, length in lengths.items()}
        else:
            spans, drafting_ms = with_reading(found, lengths, _left_ms(plan, prices, found, lengths))
        reads_along = generates or not self._reads_along
        # A prompt leaves no time for drafts that pay otherwise.
        decodes = len(found) == len(limits) and any(limits.values())
        could_draft = self._reads_along and generates and not self.always and decodes
        was_idle = could_draft and not any(span.num_to_draft for span in spans.values())
        if was_idle and self._gains.pass_over(kinds[True]) and self.draft_model is not None:
            self.draft_model.doubt(kinds[True].size)
        return ChosenDrafts(spans, drafting_ms, plain_ms, reads_along)

    @property
    def _reads_along(self) -> bool:
        return self.draft_model is not None and self.draft_model.reads_along

    def states(self) -> tuple[DraftingState, ...]:
        return () if self.draft_model is None else self._gains.states(uses_model=True)

    def compare(
        self, plain_ms: float | None, step: Step, result: StepResult, predicted_ms: float, elapsed_ms: float
    ) -> None:
        """`plain_ms`: as in `ChosenDrafts`. `predicted_ms`: of the actual step, with drafting as in
        `elapsed_ms`."""
        self._gains.pass_time(elapsed_ms)
        if result.reading_ms:
            self._gains.charge(DraftingKind.of(len(step.spans), uses_model=True), result.reading_ms)
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
        if self.draft_model is None or not outcomes:
            return
        for sequence, drafted in outcomes.items():
            self.draft_model.learn(sequence, drafted)
        self.draft_model.learn_price(outcomes, drafting_ms)

    def forget(self, sequence: Sequence) -> None:
        self.drafter.forget(sequence)
        if self.draft_model is not None:
            self.draft_model.forget(sequence)

    def _draft(
        self,
        sequence: Sequence,
        limit: int,
        prices: StepPrices,
        num_sequences: int,
        *,
        quotes: bool,
        generates: bool,
    ) -> SequenceDraft:
        """The quotation is used unless the draft model is more likely to be correct."""
        limit = max(0, min(limit, self.max_tokens))
        quoted = self.drafter.draft(sequence, limit)  # it learns even where nothing is to be drafted
        quoted = quoted if quotes else SequenceDraft()
        if self.draft_model is None or not limit or not generates:
            return quoted
        if sequence.request.media and not self._reads_along:  # a small model sees nothing
            return quoted
        single_ms = prices.single_ms
        row_ms = prices.cost.predict_ms(2) - single_ms
        generated = self.draft_model.draft(sequence, limit, single_ms, row_ms, num_sequences)
        return max(quoted, generated, key=lambda draft: draft.chances[:1])


def with_reading(
    drafts: Mapping[Sequence, SequenceDraft], lengths: Mapping[Sequence, int], left_ms: float
) -> tuple[dict[Sequence, SpanDraft], float]:
    """Return drafts with the tokens to read within `left_ms`, and that time. Fewest unread tokens go first; a
    sequence not read to its end drafts in a later step."""
    chosen: dict[Sequence, SpanDraft] = {}
    drafting_ms = 0.0
    for sequence in sorted(lengths, key=lambda s: drafts[s].num_unread):
        span_draft, ms = _read_first(drafts[sequence], lengths[sequence], left_ms)
        left_ms -= ms
        drafting_ms += ms
        if span_draft.length:
            chosen[sequence] = span_draft
    return chosen, drafting_ms + _calls_ms(drafts, {s: d.num_to_draft for s, d in chosen.items()})


def _left_ms(
    plan: StepPlan,
    prices: StepPrices,
    drafts: Mapping[Sequence, SequenceDraft],
    lengths: Mapping[Sequence, int],
) -> float:
    if not any(drafts[sequence].num_unread for sequence in lengths):
        return 0.0
    trial = plan.copy()
    for sequence, length in lengths.items():
        trial.add_draft(sequence, length)
    drafting_ms = _calls_ms(drafts, lengths)
    budget_ms = max(plan.budget_ms, prices.padded_ms(plan))
    return max(0.0, budget_ms - prices.padded_ms(trial) - drafting_ms)


def _read_first(draft: SequenceDraft, length: int, left_ms: float) -> tuple[SpanDraft, float]:
    span_draft, ms = SpanDraft.of(draft, length), draft.num_unread * draft.read_ms
    if draft.tokens:
        return span_draft, 0.0
    if ms <= left_ms or not draft.num_unread:
        return span_draft._replace(num_to_read=draft.num_unread + _FEW_TO_READ), ms
    num_to_read = int(left_ms / draft.read_ms)
    if num_to_read < _FEW_TO_READ:
        return SpanDraft(), 0.0
    return SpanDraft(num_to_draft=1, num_to_read=num_to_read), num_to_read * draft.read_ms
