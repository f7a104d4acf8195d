"""Decides what each sequence drafts: only what makes the step's sequences faster on the whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from openai_cpu_server.contract.step import Drafted
from openai_cpu_server.scheduler.cost_model import TILE
from openai_cpu_server.scheduler.drafts import Draft, Drafter, ModelDrafter
from openai_cpu_server.scheduler.plan import StepPlan
from openai_cpu_server.scheduler.sequence import Sequence

_WORTH = 0.95
"""Drafts must be predicted to bring the time per token down to this share, or they are not worth the risk."""
_LEAST_CHANCE = 0.02
"""That a token is reached at all."""


@dataclass(frozen=True)
class SpeculationOptions:
    max_tokens: int = 31
    """That one sequence drafts in a step: with its own that is two tiles."""
    always: bool = False
    """Draft whatever there is, gain or loss (for comparison and for tests)."""


class Drafting(NamedTuple):
    """What a sequence drafts: these tokens, or so many that the draft model thinks of."""

    tokens: tuple[int, ...] = ()
    num_to_draft: int = 0

    @classmethod
    def of(cls, draft: Draft, length: int) -> Drafting:
        return cls(draft.tokens[:length]) if draft.tokens else cls(num_to_draft=length)

    def cut(self, length: int) -> Drafting:
        """To so many tokens."""
        return Drafting(self.tokens[:length], min(self.num_to_draft, length))


class Speculator:
    """Asks the drafter what may come, the plan what it would cost."""

    def __init__(
        self, drafter: Drafter, options: SpeculationOptions, draft_model: ModelDrafter | None = None
    ) -> None:
        self._drafter = drafter
        self._options = options
        self._draft_model = draft_model

    def drafts(self, plan: StepPlan, limits: Mapping[Sequence, int]) -> dict[Sequence, Drafting]:
        """What each is to draft in this step, of those that may. `limits`: tokens at most."""
        found = {s: self._draft(s, limit, plan) for s, limit in limits.items() if s.is_decoding}
        lengths = choose_lengths(plan, found, always=self._options.always)
        plan.drafting_ms = sum(_ms(found[sequence], length) for sequence, length in lengths.items())
        return {sequence: Drafting.of(found[sequence], length) for sequence, length in lengths.items()}

    def learn(self, outcomes: Mapping[Sequence, Drafted], drafting_ms: float) -> None:
        """What became of drafts that the draft model was asked for in a step."""
        if self._draft_model is None or not outcomes:
            return
        for sequence, drafted in outcomes.items():
            self._draft_model.learn(sequence, drafted)
        self._draft_model.learn_price(outcomes, drafting_ms)

    def forget(self, sequence: Sequence) -> None:
        """It has finished."""
        self._drafter.forget(sequence)
        if self._draft_model is not None:
            self._draft_model.forget(sequence)

    def _draft(self, sequence: Sequence, limit: int, plan: StepPlan) -> Draft:
        """The quotation, unless the draft model is more likely to be right."""
        limit = max(0, min(limit, self._options.max_tokens))
        quoted = self._drafter.draft(sequence, limit)
        if self._draft_model is None or not limit:
            return quoted
        thought = self._draft_model.draft(sequence, limit, plan.single_ms)
        return max(quoted, thought, key=lambda draft: draft.chances[:1])


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
    included (g = 0). Where that falls, the tokens per second of all together do not fall either.
    """
    pieces = sorted((p for s, d in drafts.items() for p in _pieces(s, d)), key=lambda p: -p.gain)
    if always:
        return _counts(pieces[: plan.draft_room])
    quoted = [piece for piece in pieces if not piece.ms]
    choices = [_most_worth(plan, each[: plan.draft_room]) for each in (quoted, pieces)]
    return _counts(min(choices, key=lambda choice: choice.ms).pieces)


@dataclass(frozen=True)
class _Choice:
    pieces: list[_Piece]
    ms: float
    """Per token, summed over the step's sequences."""


def _most_worth(plan: StepPlan, pieces: list[_Piece]) -> _Choice:
    """Those of the pieces, from the first on, that make the step's sequences fastest; if it is worth it."""
    trial, steps_per_token, drafting_ms = plan.copy(), float(len(plan.parts)), 0.0
    best, best_ms = 0, _WORTH * steps_per_token * plan.padded_ms if pieces else math.inf
    for count, piece in enumerate(pieces, 1):
        trial.add_draft(piece.sequence, 1)
        steps_per_token -= piece.gain
        drafting_ms += piece.ms
        if _is_worth_a_look(trial.num_tokens, count, len(pieces)):
            ms = steps_per_token * (trial.padded_ms + drafting_ms)
            best_ms, best = min((best_ms, best), (ms, count))
    return _Choice(pieces[:best], best_ms)


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


def _ms(draft: Draft, length: int) -> float:
    """What it costs to think of so many tokens."""
    return draft.first_ms + length * draft.token_ms


def _counts(pieces: list[_Piece]) -> dict[Sequence, int]:
    counts: dict[Sequence, int] = {}
    for piece in pieces:
        counts[piece.sequence] = counts.get(piece.sequence, 0) + 1
    return counts
