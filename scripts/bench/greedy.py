"""Compares greedy outputs of the same requests, and tells near ties from real differences."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from bench.asking import ScoredToken

NEAR_TIE = 0.5
"""Computing the same tokens in other chunks moves logits by up to so much on random weights."""


class Verdict(enum.Enum):
    SAME = "same"
    NEAR_TIE = "near tie"
    """The first token that differs was, in both runs, within `NEAR_TIE` of the other run's choice."""
    DIFFERENT = "different"


class Comparison(msgspec.Struct, frozen=True):
    verdict: Verdict
    position: int | None = None
    """Of the first difference; what comes after it continues other texts."""
    gap: float | None = None
    """Log-probability between the two candidates, the larger of both runs; None: not among the best."""


def compare(alone: Sequence[ScoredToken], together: Sequence[ScoredToken]) -> Comparison:
    """Outputs of unequal length differ at the end of the shorter one."""
    for position, (a, b) in enumerate(zip(alone, together, strict=False)):
        if a.text != b.text:
            return _classify(position, a, b)
    if len(alone) != len(together):
        return Comparison(Verdict.DIFFERENT, min(len(alone), len(together)))
    return Comparison(Verdict.SAME)


def _classify(position: int, alone: ScoredToken, together: ScoredToken) -> Comparison:
    if together.text not in alone.top or alone.text not in together.top:
        return Comparison(Verdict.DIFFERENT, position)
    gap = max(alone.logprob - alone.top[together.text], together.logprob - together.top[alone.text])
    return Comparison(Verdict.NEAR_TIE if gap <= NEAR_TIE else Verdict.DIFFERENT, position, gap)
