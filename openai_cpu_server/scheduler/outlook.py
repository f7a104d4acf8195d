"""What those who wait may expect. An estimate: outputs may be shorter or longer, and others may come."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.scheduler.plan import StepCost
from openai_cpu_server.scheduler.sequence import Sequence

READING_TOKENS = 128
"""The step size by which the price of reading a prompt is estimated: the largest that is always measured."""


@dataclass(frozen=True)
class Outlook:
    sequence: Sequence
    position: int
    """1 is next."""
    first_token_ms: float


class Line:
    """Those who wait, as they come to the slots one after the other: each waits for a place, then for the
    prompts before it and its own.

    A place is a free slot, one that a sequence of a worse lane holds, or one whose holder has ended.
    """

    def __init__(
        self,
        running: Seq[Sequence],
        cost: StepCost,
        *,
        num_slots: int,
        expected_left: Callable[[Sequence], int],
        lane: Callable[[Sequence], int],
    ) -> None:
        self._running = running
        self._expected_left = expected_left
        self._lane = lane
        self._token_ms = cost.predict_ms(READING_TOKENS) / READING_TOKENS
        self._round_ms = _round_ms(running, cost)
        self._backlog = _Backlog()
        """The prompts that are read before that of whoever comes next."""
        self._places, self._best_lane = [0] * num_slots, -1

    def enter(self, sequence: Sequence) -> float:
        """The sequence is the next in the order. Returns when its first token comes, in milliseconds."""
        self._open(self._lane(sequence))
        start = heapq.heappop(self._places)
        heapq.heappush(self._places, start + max(1, self._expected_left(sequence)))
        self._backlog.add(sequence, sequence.expected_pending)
        return self._ms(start, sequence.request.adapter)

    def newcomer_ms(self, lane: int) -> float:
        """When the first token of one without a prompt would come, behind all who have entered. It is for the
        model as it is, without an adapter."""
        self._open(lane)
        return self._ms(self._places[0], None)

    def _open(self, lane: int) -> None:
        """From now on, those of this lane enter: those who run in it keep their places from them."""
        if lane <= self._best_lane:
            return
        joining = [s for s in self._running if self._best_lane < self._lane(s) <= lane]
        self._places = _with_taken(self._places, [max(1, self._expected_left(s)) for s in joining])
        for sequence in joining:
            self._backlog.join(sequence)
        self._best_lane = lane

    def _ms(self, start: int, adapter: str | None) -> float:
        return start * self._round_ms + self._backlog.tokens_until(adapter) * self._token_ms


def outlook(waiting: Iterable[Sequence], line: Line) -> list[Outlook]:
    """The outlooks of `waiting`, who come in their order."""
    return [Outlook(s, position, line.enter(s)) for position, s in enumerate(waiting, 1)]


class _Backlog:
    """The tokens of prompts that are still to be read, by cohort.

    Cohorts take turns by the time that they use: while one reads its prompts, each other one gets as much
    time, if it has so much to do. One that writes outputs has.
    """

    def __init__(self) -> None:
        self._tokens = Counter[str | None]()
        self._writing = set[str | None]()

    def join(self, sequence: Sequence) -> None:
        """It runs: it reads its prompt, or writes."""
        if sequence.pending > 1:
            self.add(sequence, sequence.pending)
        else:
            self._writing.add(sequence.request.adapter)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """So many of its tokens are to be read."""
        self._tokens[sequence.request.adapter] += num_tokens

    def tokens_until(self, adapter: str | None) -> int:
        """Tokens for which there is time until the last prompt of this cohort is read."""
        own, writing = self._tokens[adapter], self._writing - {adapter}
        reading = (n for other, n in self._tokens.items() if other != adapter and other not in writing)
        return own * (1 + len(writing)) + sum(min(own, tokens) for tokens in reading)


def _round_ms(running: Seq[Sequence], cost: StepCost) -> float:
    """How long it takes until each running sequence has a token more: a step for each cohort."""
    sizes = Counter(sequence.request.adapter for sequence in running).values()
    return sum(cost.predict_ms(size) for size in sizes) or cost.predict_ms(1)


def _with_taken(places: list[int], leaving: list[int]) -> list[int]:
    """In how many steps each slot is free, a heap, when those who leave in so many steps hold slots too."""
    taken = [steps for steps in places if steps] + leaving
    num_free = max(0, len(places) - len(taken))
    return sorted([0] * num_free + taken)[: len(places)]
