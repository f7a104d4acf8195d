"""How much of its draft each sequence computes: only what makes the step's sequences faster together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from openai_cpu_server.scheduler.cost_model import TILE
from openai_cpu_server.scheduler.drafts import Draft
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

_WORTH = 0.95
"""Drafts must be predicted to bring the time per token down to this share, or they are not worth the risk.

`scripts/sensitivity.py draft_lengths._WORTH`: at 0.85 quotations lose 2 %; at 1.0 nothing is gained.
"""
_PATIENCE = 1.3
"""Budgets that a step with drafts may take: half a tile takes nearly as long as a whole one.

`scripts/sensitivity.py draft_lengths._PATIENCE`: 2.0 brings quotations 4 % more, for stalls that are half as
long again.
"""
_LEAST_CHANCE = 0.02
"""Draft tokens that are less likely than this to be reached are not weighed at all. It saves time in Python;
`scripts/sensitivity.py draft_lengths._LEAST_CHANCE`: 0.005 to 0.1 changes nothing.
"""


@dataclass(frozen=True)
class _Piece:
    """One more draft token of a sequence."""

    sequence: Sequence
    gain: float
    """By so much it shortens the sequence's time per token, in steps."""
    ms: float
    """What it costs to think of it."""


def choose_lengths(plan: StepPlan, drafts: Mapping[Sequence, Draft], *, always: bool) -> dict[Sequence, int]:
    """How many tokens of its draft each sequence is to compute in this step.

    With T the step's time and g the draft tokens of a sequence that are expected to be right, it takes
    T / (1 + g) for a token; what counts is the mean over all sequences in the step, those that draft nothing
    included (g = 0). Where that falls, the tokens per second of all together do not fall either. No step is
    made much longer than its budget for drafts: whoever comes meanwhile has to wait for its end.
    """
    if not always and not _can_pay(plan, drafts):
        return {}
    pieces = sorted((p for s, d in drafts.items() for p in _pieces(s, d)), key=lambda p: -p.gain)
    if always:
        return _counts(pieces[: plan.draft_room])
    quoted = [piece for piece in pieces if not piece.ms]
    ways = [pieces] if len(quoted) == len(pieces) else [quoted, pieces]
    choices = [_most_worth(plan, way[: plan.draft_room]) for way in ways]
    return _counts(min(choices, key=lambda choice: choice.ms).pieces)


def _can_pay(plan: StepPlan, drafts: Mapping[Sequence, Draft]) -> bool:
    """Whether drafts would if all their tokens were certain, took no thinking, and attended to nothing.

    m drafts of c tokens in all, shared out evenly, leave m * m / (m + c) steps of m.
    """
    lengths = [len(draft.chances) for draft in drafts.values() if draft.chances]
    most, num_drafting = min(plan.draft_room, sum(lengths)), len(lengths)
    if most <= 0:
        return False
    num_others, last_ms = len(plan.parts) - num_drafting, math.inf
    goal_ms = _WORTH * len(plan.parts) * plan.padded_ms
    for count in (*_doublings(most), most):
        ms = plan.least_ms(count)
        steps_per_token = num_others + num_drafting**2 / (num_drafting + count)
        if steps_per_token * min(ms, last_ms) < goal_ms:
            return True
        last_ms = ms
    return False


def _doublings(end: int) -> Iterator[int]:
    """1, 2, 4, ..., all below `end`."""
    return takewhile(lambda count: count < end, (1 << power for power in itertools.count()))


@dataclass(frozen=True)
class _Choice:
    pieces: list[_Piece]
    ms: float
    """Per token, summed over the step's sequences."""


def _most_worth(plan: StepPlan, pieces: list[_Piece]) -> _Choice:
    """Those of the pieces, from the first on, that make the step's sequences fastest; if it is worth it."""
    if not pieces:
        return _Choice([], math.inf)
    trial, steps_per_token, drafting_ms = plan.copy(), float(len(plan.parts)), 0.0
    plain_ms = plan.padded_ms
    limit_ms = max(_PATIENCE * plan.budget_ms, plain_ms)
    fits = _fitting(plan, len(pieces), limit_ms)
    best, best_ms = 0, _WORTH * steps_per_token * plain_ms
    for count, piece in enumerate(pieces, 1):
        trial.add_draft(piece.sequence, 1)
        steps_per_token -= piece.gain
        drafting_ms += piece.ms
        if count == fits or _is_worth_a_look(trial.num_tokens, count, len(pieces)):
            step_ms = trial.padded_ms + drafting_ms
            if step_ms <= limit_ms:
                best_ms, best = min((best_ms, best), (steps_per_token * step_ms, count))
            elif count > fits:
                break
    return _Choice(pieces[:best], best_ms)


def _fitting(plan: StepPlan, num_further: int, limit_ms: float) -> int:
    """How many of so many further tokens the step has time for, were it not for what they attend to."""
    if plan.least_ms(num_further) <= limit_ms:
        return num_further
    fits, too_many = 0, num_further
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if plan.least_ms(middle) <= limit_ms:
            fits = middle
        else:
            too_many = middle
    return fits


def _pieces(sequence: Sequence, draft: Draft) -> Iterator[_Piece]:
    """Of falling gain."""
    reached, expected, ms = 1.0, 1.0, draft.first_ms + draft.token_ms
    for chance in draft.chances:
        reached *= chance
        if reached < _LEAST_CHANCE:
            return
        yield _Piece(sequence, 1 / expected - 1 / (expected + reached), ms)
        expected, ms = expected + reached, draft.token_ms


def _is_worth_a_look(size: int, count: int, last: int) -> bool:
    """Times climb in stairs: the ends of tiles, some sizes between, and all that there is."""
    return size % TILE == 0 or count & (count - 1) == 0 or count == last


def _counts(pieces: list[_Piece]) -> dict[Sequence, int]:
    counts: dict[Sequence, int] = {}
    for piece in pieces:
        counts[piece.sequence] = counts.get(piece.sequence, 0) + 1
    return counts
