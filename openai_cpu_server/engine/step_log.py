"""Logs who was in each step, at level `debug`: for people, and as fields for programs that draw it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq

from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.scheduler.plan import Reason
from openai_cpu_server.scheduler.sequence import Sequence

logger = logging.getLogger(__name__)


def log_step(
    step: Step,
    participants: Seq[Sequence],
    reasons: Callable[[Sequence], Mapping[Reason, int]],
    result: StepResult,
    *,
    started_s: float,
    elapsed_ms: float,
) -> None:
    """Call it before the step is applied.

    `participants` as its spans; `reasons`: how many tokens of a sequence are in it for which reason;
    `started_s` of the monotonic clock.
    """
    if not logger.isEnabledFor(logging.DEBUG) or not step.spans:
        return
    spans = [
        {
            "id": sequence.request.id,
            "priority": sequence.request.priority.label,
            "tokens": span.num_tokens,
            "decodes": sequence.is_decoding,
            "why": {reason.value: num_tokens for reason, num_tokens in reasons(sequence).items()},
        }
        for sequence, span in zip(participants, step.spans, strict=True)
    ]
    fields = {
        "started_s": started_s,
        "elapsed_ms": elapsed_ms,
        "padding": result.padding,
        "interrupted": result.interrupted,
        "adapter": step.adapter,
        "spans": spans,
    }
    logger.debug(
        "step of %.1f ms: %d tokens of %d sequences, %d padding",
        elapsed_ms,
        step.num_tokens,
        len(spans),
        result.padding,
        extra={"fields": fields},
    )
