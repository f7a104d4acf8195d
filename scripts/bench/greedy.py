"""Compares greedy outputs of the same requests, and tells near ties from real differences."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import msgspec

from bench.asking import ScoredToken


class Verdict(enum.Enum):
    SAME = "same"
    NEAR_TIE = "near tie"
    """At the first token that differs, both runs found the other run's choice nearly as good."""
    DIFFERENT = "different"


class Comparison(msgspec.Struct, frozen=True):
    verdict: Verdict
    position: int | None = None
    """The position of the first difference; the texts behind it cannot be compared."""
    gap: float | None = None
    """The difference of the two candidates' log-probabilities, the larger of both runs;
    None: one is not among the best."""


def compare(alone: Sequence[ScoredToken], together: Sequence[ScoredToken], *, near_tie: float) -> Comparison:
    """Compare two outputs. If one is shorter, they differ at its end.

    `near_tie` is the largest gap that rounding explains.
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
    """How much the margins between the same two candidates differ in two runs of the same prompt.

    There is one for each output token, up to the first that differs, if both runs have both candidates among
    their best.
    """
    for a, b in zip(one, other, strict=False):
        best, *others = sorted(a.top, key=lambda text: -a.top[text])
        if others and {best, others[0]} <= b.top.keys():
            yield abs((a.top[best] - a.top[others[0]]) - (b.top[best] - b.top[others[0]]))
        if a.text != b.text:
            return
