"""Choice of each sequence's number of draft tokens that makes all sequences together fastest."""

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
"""Maximum predicted time per token with drafts relative to that without, because drafts are a risk.

`scripts/regress.py sensitivity speculation.draft_lengths._WORTH`: at 0.85 quotations lose 4 %; at 1.0 nothing
is gained.
"""
_LEAST_CHANCE = 0.02
"""Minimum probability of reaching a draft token that is considered, which saves time in Python.
`scripts/regress.py sensitivity speculation.draft_lengths._LEAST_CHANCE`: 0.005 to 0.1 changes nothing."""


@dataclass(frozen=True)
class _DraftToken:
    sequence: Sequence
    gain: float
    """Reduction of the sequence's expected time per token, in steps."""
    ms: float
    """Time of the draft model for it, or 0 if it is quoted."""


def choose_lengths(
    plan: StepPlan, prices: StepPrices, drafts: Mapping[Sequence, SequenceDraft], *, always: bool
) -> dict[Sequence, int]:
    """Return the number of draft tokens of each sequence in this step, without zeros.

    If a step takes the time T, and g draft tokens of a sequence are expected to be correct, the sequence
    needs T / (1 + g) per token. The mean over all sequences in the step, also those without a draft (g = 0),
    is minimised. Then the total tokens per second do not fall either. Drafts make no step longer than its
    budget, because new requests wait for its end. `always`: compute all drafts that fit.
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
    """Return True if drafts could pay if all their tokens were correct, free to find, and attended to
    nothing.

    If c draft tokens are shared evenly among m sequences, each of these needs m / (m + c) steps per token. In
    total that is m * m / (m + c).
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
    """Expected time per token, summed over the step's sequences."""


def _most_worth(plan: StepPlan, prices: StepPrices, tokens: list[_DraftToken]) -> _Choice:
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
        # Step times climb in stairs, and each prediction takes time. So only ends of tiles,
        # powers of two and the last token are examined.
        is_end_of_tile, is_power_of_two = trial.num_tokens % TILE_TOKENS == 0, count & (count - 1) == 0
        if is_end_of_tile or is_power_of_two or count in (fits, len(tokens)):
            step_ms = prices.padded_ms(trial) + drafting_ms
            if step_ms <= limit_ms:
                best_ms, best = min((best_ms, best), (steps_per_token * step_ms, count))
            elif count > fits:
                break
    return _Choice(tokens[:best], best_ms)


def _fitting(plan: StepPlan, prices: StepPrices, num_further: int, limit_ms: float) -> int:
    if prices.padded_ms(plan, num_further) <= limit_ms:
        return num_further
    return bisect_right(range(1, num_further), limit_ms, key=lambda count: prices.padded_ms(plan, count))


def _draft_tokens(sequence: Sequence, draft: SequenceDraft) -> Iterator[_DraftToken]:
    reached, expected, ms = 1.0, 1.0, draft.first_ms + draft.token_ms
    for chance in draft.chances:
        reached *= chance
        if reached < _LEAST_CHANCE:
            return
        yield _DraftToken(sequence, 1 / expected - 1 / (expected + reached), ms)
        expected, ms = expected + reached, draft.token_ms


def _counts(tokens: list[_DraftToken]) -> dict[Sequence, int]:
    counts: dict[Sequence, int] = {}
    for token in tokens:
        counts[token.sequence] = counts.get(token.sequence, 0) + 1
    return counts
