"""Whether a small model's answers are good enough. Pure."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.models.routing.decide import Decision, Reason
from openai_cpu_server.models.routing.options import Cascade


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What counts of one answer."""

    logprobs: tuple[float, ...]
    """Of its tokens."""
    finish: FinishReason
    has_form: bool
    """It had to be JSON, or of another form."""


def verdict(cascade: Cascade, answers: list[Judged]) -> Decision:
    """The small route if all answers are good enough, else the large one."""
    if any(answer.has_form and answer.finish is FinishReason.LENGTH for answer in answers):
        return Decision(cascade.large, Reason.CUT, "the answer was cut")
    worst = min(map(_mean, answers))
    said = f"mean_logprob={worst:.2f}"
    if worst < cascade.mean_logprob:
        return Decision(cascade.large, Reason.UNSURE, said)
    return Decision(cascade.small, Reason.SURE, said)


def _mean(answer: Judged) -> float:
    """An answer without tokens is the worst."""
    if not answer.logprobs:
        return float("-inf")
    return sum(answer.logprobs) / len(answer.logprobs)
