"""What those who wait may expect. An estimate: outputs may be shorter or longer, and others may come."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.scheduler.plan import StepCost
from openai_cpu_server.scheduler.sequence import Sequence

_READING_TOKENS = 128
"""The step size by which the price of reading a prompt is estimated: the largest that is always measured."""


@dataclass(frozen=True)
class Outlook:
    sequence: Sequence
    position: int
    """1 is next."""
    first_token_ms: float


def outlook(
    waiting: Iterable[Sequence],
    running: Seq[Sequence],
    cost: StepCost,
    *,
    num_slots: int,
    expected_left: Callable[[Sequence], int],
    lane: Callable[[Sequence], int],
) -> list[Outlook]:
    """The outlooks of `waiting`, who come in their order: each waits for a place, then for the prompts
    before it and its own.

    A place is a free slot, one that a sequence of a worse lane holds, or one whose holder has ended.
    """
    token_ms = cost.predict_ms(_READING_TOKENS) / _READING_TOKENS
    step_ms = cost.predict_ms(max(len(running), 1))
    backlog = sum(s.pending for s in running if s.pending > 1)
    places, best_lane = [0] * num_slots, -1
    found = []
    for position, sequence in enumerate(waiting, 1):
        if lane(sequence) > best_lane:
            joining = [s for s in running if best_lane < lane(s) <= lane(sequence)]
            places = _with_taken(places, [max(1, expected_left(s)) for s in joining])
            best_lane = lane(sequence)
        start = heapq.heappop(places)
        heapq.heappush(places, start + max(1, expected_left(sequence)))
        backlog += sequence.pending
        found.append(Outlook(sequence, position, start * step_ms + backlog * token_ms))
    return found


def _with_taken(places: list[int], leaving: list[int]) -> list[int]:
    """In how many steps each slot is free, a heap, when those who leave in so many steps hold slots too."""
    taken = [steps for steps in places if steps] + leaving
    num_free = max(0, len(places) - len(taken))
    return sorted([0] * num_free + taken)[: len(places)]
