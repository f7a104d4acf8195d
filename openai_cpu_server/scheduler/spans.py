"""Conversion of a plan to the spans of a step, and of their result to the progress of sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from openai_cpu_server.contract.step import NOTHING_DRAFTED, Sample, Span, Step, StepResult
from openai_cpu_server.scheduler.admission import Admission
from openai_cpu_server.scheduler.memory import KVLedger, SequenceMemory
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence, SequenceAdvance, SequenceStatus
from openai_cpu_server.scheduler.speculation.speculator import ChosenDrafts, SpanDraft


@dataclass(eq=False)
class CellClaims:
    memory: SequenceMemory
    admission: Admission

    def spans(self, plan: StepPlan) -> tuple[Span, ...]:
        spans = [self._span(sequence, num_tokens) for sequence, num_tokens in plan.parts.items()]
        # A sequence later in the plan, but better in order, may have released one that had its span already.
        running = self.memory.running
        return tuple(span for span in spans if span is not None and span.slot in running)

    def draft_limits(self, spans: tuple[Span, ...]) -> dict[Sequence, int]:
        """Return the most draft tokens of each sequence: none in a prompt or where tokens are scored."""
        limits: dict[Sequence, int] = {}
        for span in spans:
            sequence = self.memory.running[span.slot]
            may_draft = span.sample and not span.targets and sequence.is_decoding
            limit = min(sequence.remaining - 1, self._draft_cells(span)) if may_draft else 0
            limits[sequence] = limit
        return limits

    def with_drafts(self, plan: StepPlan, spans: tuple[Span, ...], chosen: ChosenDrafts) -> tuple[Span, ...]:
        """Return the spans with their drafts, which are added to the plan. Drafts follow all other
        allocations, so that no sequence is preempted for a draft."""
        running = self.memory.running
        drafts = [chosen.spans.get(running[span.slot], SpanDraft()) for span in spans]
        return tuple(self._with_draft(plan, span, draft) for span, draft in zip(spans, drafts, strict=True))

    def padding(self, plan: StepPlan, prices: StepPrices) -> int:
        """Return the padding that makes the step faster, or 0 without KV cells for it."""
        if not plan.num_tokens:
            return 0
        ledger = self.memory.ledger
        padding = prices.padded_size(plan.num_tokens) - plan.num_tokens
        return padding if padding <= ledger.num_free * ledger.block_size else 0

    def give_up_drafts(self, step: Step) -> None:
        for span in step.spans:
            if span.num_drafted:
                self.memory.ledger.shrink(span.slot, span.start + len(span.tokens))

    def _span(self, sequence: Sequence, num_tokens: int) -> Span | None:
        if sequence.status is not SequenceStatus.RUNNING:
            return None
        wanted, num_tokens = num_tokens, min(num_tokens, self._claim(sequence))
        if num_tokens == 0 or (num_tokens < wanted and sequence.computes_whole):
            return None
        start, end = sequence.computed, sequence.computed + num_tokens
        self.memory.ledger.grow(sequence.slot, end)
        return Span(
            slot=sequence.slot,
            start=start,
            tokens=tuple(sequence.tokens[start:end]),
            sample=end == len(sequence.tokens) and sequence.remaining > 0,
            targets=sequence.targets(start, end),
        )

    def _claim(self, sequence: Sequence) -> int:
        """Preempt sequences behind this one in order until a token fits. Return 0 if it is the last."""
        while (room := self.memory.ledger.room(sequence.slot) - sequence.computed) <= 0:
            worst = self.admission.running_in_order()[-1]
            if worst is sequence:
                return 0
            self.admission.release(worst)
        return room

    def _draft_cells(self, span: Span) -> int:
        return self.memory.ledger.room(span.slot) - span.start - len(span.tokens)

    def _with_draft(self, plan: StepPlan, span: Span, draft: SpanDraft) -> Span:
        draft = draft.cut(self._draft_cells(span))
        if not draft.length:
            return span
        self.memory.ledger.grow(span.slot, span.start + len(span.tokens) + draft.length)
        plan.add_draft(self.memory.running[span.slot], draft.length)
        return replace(
            span, draft=draft.tokens, num_to_draft=draft.num_to_draft, num_to_read=draft.num_to_read
        )


def advance(sequence: Sequence, span: Span, result: StepResult, ledger: KVLedger) -> SequenceAdvance:
    sequence.num_padded += result.padding
    samples = samples_of(span, result, sequence.remaining)
    sequence.computed += len(span.tokens)
    sequence.tokens += [token for sample in samples for token in (sample.token, *sample.forced)]
    if span.num_drafted:
        drafted = result.drafted.get(span.slot, NOTHING_DRAFTED)
        sequence.computed += drafted.num_accepted
        sequence.num_drafted += drafted.num_computed
        sequence.num_accepted += drafted.num_accepted
        ledger.shrink(sequence.slot, sequence.computed)
    scores = result.scores.get(span.slot, ())[max(0, sequence.num_scored - span.start) :]
    sequence.num_scored += len(scores)
    failure, fault = result.failures.get(span.slot), result.faults.get(span.slot)
    return SequenceAdvance(sequence, samples, scores, failure, fault)


def samples_of(span: Span, result: StepResult, num_tokens: int) -> tuple[Sample, ...]:
    if not span.sample or span.slot not in result.samples:
        return ()
    samples: list[Sample] = []
    for sample in (result.samples[span.slot], *result.further.get(span.slot, ())):
        if num_tokens > 0:
            forced = sample.forced[: num_tokens - 1]
            samples.append(sample if forced == sample.forced else replace(sample, forced=forced))
        num_tokens -= 1 + len(sample.forced)
    return tuple(samples)


def without_missing_drafts(
    plan: StepPlan, step: Step, result: StepResult, running: Mapping[int, Sequence]
) -> StepPlan:
    """`running`: the sequences by slot before the result is applied."""
    actual = plan.copy()
    for span in step.spans:
        missing = span.num_drafted - result.drafted.get(span.slot, NOTHING_DRAFTED).num_computed
        if missing:
            actual.drop_draft(running[span.slot], missing)
    return actual
