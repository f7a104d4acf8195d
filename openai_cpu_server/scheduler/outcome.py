"""Reads the result of a step."""

from __future__ import annotations

from collections.abc import Mapping

from openai_cpu_server.contract.step import Drafted, Sample, Span, Step, StepResult
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

NOTHING_DRAFTED = Drafted()


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
