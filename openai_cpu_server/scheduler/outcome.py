"""Reads the result of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openai_cpu_server.contract.step import Drafted, Sample, Span, Step, StepResult, TokenLogprob
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

NOTHING_DRAFTED = Drafted()


@dataclass(frozen=True)
class Advance:
    """The progress of one sequence in a step."""

    sequence: Sequence
    samples: tuple[Sample, ...]
    """What was sampled, several where a draft was right. They never go beyond the sequence's `max_tokens`."""
    scores: tuple[TokenLogprob, ...]
    failure: str | None = None
    """Why its constraint cannot be carried out any further: the caller must finish it. None: no failure."""


def advance(sequence: Sequence, span: Span, result: StepResult, ledger: KVLedger) -> Advance:
    """Take over what the span has brought to its sequence."""
    sequence.num_padded += result.padding
    samples = samples_of(span, result, sequence.remaining)
    sequence.computed += len(span.tokens)
    sequence.tokens += [token for sample in samples for token in (sample.token, *sample.forced)]
    if span.num_drafted:
        _settle_draft(sequence, result.drafted.get(span.slot, NOTHING_DRAFTED), ledger)
    scores = result.scores.get(span.slot, ())[max(0, sequence.num_scored - span.start) :]
    sequence.num_scored += len(scores)
    return Advance(sequence, samples, scores, result.failures.get(span.slot))


def _settle_draft(sequence: Sequence, drafted: Drafted, ledger: KVLedger) -> None:
    """Count the draft's right tokens as computed, and give back the cells of the others."""
    sequence.computed += drafted.num_accepted
    sequence.num_drafted += drafted.num_computed
    sequence.num_accepted += drafted.num_accepted
    ledger.shrink(sequence.slot, sequence.computed)


def samples_of(span: Span, result: StepResult, num_tokens: int) -> tuple[Sample, ...]:
    """The samples behind the span and its right draft tokens, cut to `num_tokens` tokens in all."""
    if not span.sample or span.slot not in result.samples:
        return ()
    samples: list[Sample] = []
    for sample in (result.samples[span.slot], *result.further.get(span.slot, ())):
        if num_tokens > 0:
            samples.append(_cut(sample, num_tokens))
        num_tokens -= 1 + len(sample.forced)
    return tuple(samples)


def _cut(sample: Sample, num_tokens: int) -> Sample:
    """The sample with at most `num_tokens` tokens, forced ones included."""
    if len(sample.forced) < num_tokens:
        return sample
    return Sample(sample.token, sample.logprob, sample.forced[: num_tokens - 1])


def without_missing_drafts(
    plan: StepPlan, step: Step, result: StepResult, running: Mapping[int, Sequence]
) -> tuple[StepPlan, int]:
    """The plan as it was carried out, and how many of the step's draft tokens were not computed.

    `running` are the sequences by slot, before the result is applied to them.
    """
    actual, num_missing = plan.copy(), 0
    for span in step.spans:
        missing = span.num_drafted - result.drafted.get(span.slot, NOTHING_DRAFTED).num_computed
        if missing:
            actual.drop_draft(running[span.slot], missing)
            num_missing += missing
    return actual, num_missing
