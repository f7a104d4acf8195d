"""What those who wait may expect. An estimate: outputs may be shorter than asked for, and others may come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from openai_cpu_server.scheduler.plan import StepCost
from openai_cpu_server.scheduler.sequence import Sequence

_READING_TOKENS = 128
"""The step size by which the price of reading a prompt is estimated."""


@dataclass(frozen=True)
class Outlook:
    sequence: Sequence
    position: int
    """1 is next."""
    first_token_ms: float


def outlook(
    waiting: Iterable[Sequence], running: list[Sequence], cost: StepCost, num_slots: int
) -> list[Outlook]:
    """For `waiting`, in their order: a place for them, then the prompts before them and their own."""
    token_ms = cost.predict_ms(_READING_TOKENS, 0, 0) / _READING_TOKENS
    step_ms = cost.predict_ms(max(len(running), 1), 0, 0)
    leaving = sorted(max(s.remaining, 0) for s in running)
    free = num_slots - len(running)
    backlog = sum(s.pending for s in running if s.pending > 1)
    found = []
    for index, sequence in enumerate(waiting):
        backlog += sequence.pending
        place_ms = step_ms * _steps_to_a_place(index - free, leaving)
        found.append(Outlook(sequence, index + 1, place_ms + backlog * token_ms))
    return found


def _steps_to_a_place(rank: int, leaving: list[int]) -> int:
    """Until `rank` + 1 of the running have left; the next generation is taken to last as long."""
    if rank < 0 or not leaving:
        return 0
    generations, within = divmod(rank, len(leaving))
    return generations * leaving[-1] + leaving[within]
