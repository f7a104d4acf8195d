"""Chooses how many tokens of its draft each sequence computes: those that make all together faster."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from openai_cpu_server.contract.model_info import TILE_TOKENS
from openai_cpu_server.scheduler.plan import StepPlan, StepPrices
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.speculation.drafts import SequenceDraft

_WORTH = 0.95
"""Drafts must be predicted to bring the time per token down to this share, or they are not worth the risk.

`scripts/regress.py sensitivity speculation.draft_lengths._WORTH`: at 0.85 quotations lose 4 %; at 1.0
nothing is gained.
"""
_LEAST_CHANCE = 0.02
"""Draft tokens that are less likely than this to be reached are not weighed at all. It saves time in Python;
`scripts/regress.py sensitivity speculation.draft_lengths._LEAST_CHANCE`: 0.005 to 0.1 changes nothing.
"""


@dataclass(frozen=True)
class _DraftToken:
    """One further draft token of a sequence."""

    sequence: Sequence
    gain: float
    """How much it shortens the sequence's expected time per token, in steps."""
    ms: float
    """The time that the draft model takes for it; 0 if it is quoted."""


def choose_lengths(
    plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, SequenceDraft], *, always: bool
) -> dict[Sequence, int]:
    """How many tokens of its draft each sequence computes in this step; those with none are left out.

    If a step takes the time T, and g draft tokens of a sequence are expected to be right, the sequence needs
    T / (1 + g) per token. The mean of this over all sequences in the step, also those without a draft
    (g = 0), is made as small as it gets; the tokens per second of all together then do not fall either.
    Drafts make no step longer than its budget, because newcomers have to wait for its end. `always`:
    compute all drafts that there is room for.
    """
    if not always and not _can_pay(plan, prices, drafts):
        return {}
    tokens = sorted((t for s, d in drafts.items() for t in _draft_tokens(s, d)), key=lambda t: -t.gain)
    if always:
        return _counts(tokens[: plan.draft_room])
    quoted = [token for token in tokens if not token.ms]
    ways = [tokens] if len(quoted) == len(tokens) else [quoted, tokens]
    choices = [_most_worth(plan, prices, way[: plan.draft_room]) for way in ways]
    return _counts(min(choices, key=lambda choice: choice.ms).tokens)


def _can_pay(plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, SequenceDraft]) -> bool:
    """Whether drafts could pay if all their tokens were right, cost nothing to find, and attended to nothing.

    If c draft tokens are shared evenly among m sequences, each of these needs m / (m + c) steps per token;
    added up that is m * m / (m + c).
    """
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


@dataclass(frozen=True)
class _Choice:
    tokens: list[_DraftToken]
    ms: float
    """The expected time per token, summed over the step's sequences."""


def _most_worth(plan: StepPlan, prices: StepPrices, tokens: list[_DraftToken]) -> _Choice:
    """The tokens, from the first on, that make the step's sequences fastest; none if they win too little."""
    if not tokens:
        return _Choice([], math.inf)
    trial, steps_per_token, drafting_ms = plan.copy(), float(len(plan.parts)), 0.0
    plain_ms = prices.padded_ms(plan)
    limit_ms = max(plan.budget_ms, plain_ms)
    fits = _fitting(plan, prices, len(tokens), limit_ms)
    best, best_ms = 0, _WORTH * steps_per_token * plain_ms
    for count, token in enumerate(tokens, 1):
        trial.add_draft(token.sequence, 1)
        steps_per_token -= token.gain
        drafting_ms += token.ms
        if count == fits or _is_worth_a_look(trial.num_tokens, count, len(tokens)):
            step_ms = prices.padded_ms(trial) + drafting_ms
            if step_ms <= limit_ms:
                best_ms, best = min((best_ms, best), (steps_per_token * step_ms, count))
            elif count > fits:
                break
    return _Choice(tokens[:best], best_ms)


def _fitting(plan: StepPlan, prices: StepPrices, num_further: int, limit_ms: float) -> int:
    """How many of `num_further` tokens the step would have time for if they attended to nothing."""
    if prices.padded_ms(plan, num_further) <= limit_ms:
        return num_further
    return bisect_right(range(1, num_further), limit_ms, key=lambda count: prices.padded_ms(plan, count))


def _draft_tokens(sequence: Sequence, draft: SequenceDraft) -> Iterator[_DraftToken]:
    """The draft's tokens from the first on; each gains less than the one before."""
    reached, expected, ms = 1.0, 1.0, draft.first_ms + draft.token_ms
    for chance in draft.chances:
        reached *= chance
        if reached < _LEAST_CHANCE:
            return
        yield _DraftToken(sequence, 1 / expected - 1 / (expected + reached), ms)
        expected, ms = expected + reached, draft.token_ms


def _is_worth_a_look(size: int, count: int, last: int) -> bool:
    """Whether to compute the time of this size: at ends of tiles, at powers of two, and at the last token.

    Step times climb in stairs; the sizes between are left out, for each look takes time.
    """
    return size % TILE_TOKENS == 0 or count & (count - 1) == 0 or count == last


def _counts(tokens: list[_DraftToken]) -> dict[Sequence, int]:
    counts: dict[Sequence, int] = {}
    for token in tokens:
        counts[token.sequence] = counts.get(token.sequence, 0) + 1
    return counts
