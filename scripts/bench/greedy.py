"""Compares greedy outputs of the same requests, and tells near ties from real differences."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from bench.asking import ScoredToken


class Verdict(enum.Enum):
    SAME = "same"
    NEAR_TIE = "near tie"
    """The first token that differs was, in both runs, hardly better than the other run's choice."""
    DIFFERENT = "different"


class Comparison(msgspec.Struct, frozen=True):
    verdict: Verdict
    position: int | None = None
    """Of the first difference; what comes after it continues other texts."""
    gap: float | None = None
    """Log-probability between the two candidates, the larger of both runs; None: not among the best."""


def compare(alone: Sequence[ScoredToken], together: Sequence[ScoredToken], *, near_tie: float) -> Comparison:
    """Outputs of unequal length differ at the end of the shorter one.

    `near_tie`: the largest gap that rounding explains.
    """
    for position, (a, b) in enumerate(zip(alone, together, strict=False)):
        if a.text != b.text:
            return _classify(position, a, b, near_tie)
    if len(alone) != len(together):
        return Comparison(Verdict.DIFFERENT, min(len(alone), len(together)))
    return Comparison(Verdict.SAME)


def _classify(position: int, alone: ScoredToken, together: ScoredToken, near_tie: float) -> Comparison:
    if together.text not in alone.top or alone.text not in together.top:
        return Comparison(Verdict.DIFFERENT, position)
    gap = max(alone.logprob - alone.top[together.text], together.logprob - together.top[alone.text])
    return Comparison(Verdict.NEAR_TIE if gap <= near_tie else Verdict.DIFFERENT, position, gap)


def margin_shifts(one: Sequence[ScoredToken], other: Sequence[ScoredToken]) -> Iterator[float]:
    """By how much the margins between the same two candidates differ in two runs of the same prompt.

    One for each output token, up to the first that differs, where both are among the best of both.
    """
    for a, b in zip(one, other, strict=False):
        best, *others = sorted(a.top, key=lambda text: -a.top[text])
        if others and {best, others[0]} <= b.top.keys():
            yield abs((a.top[best] - a.top[others[0]]) - (b.top[best] - b.top[others[0]]))
        if a.text != b.text:
            return
