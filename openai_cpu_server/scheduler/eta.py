from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import KW_ONLY, dataclass
from itertools import islice

import msgspec

from openai_cpu_server.contract.messages import QueuePlace
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.scheduler.admission import AdmissionQueue, LiveSequences
from openai_cpu_server.scheduler.compose import EncodingTurns
from openai_cpu_server.scheduler.cost_model import LearnedCosts
from openai_cpu_server.scheduler.plan import StepCost, StepPlan
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence

READING_TOKENS = 128
"""Step size for estimates of prefill: the largest that is always measured."""


class WaitingLine:
    """Simulation of waiting sequences that enter in order. Each waits for a place, then for the prompts
    before it and its own."""

    def __init__(
        self,
        running: Seq[Sequence],
        cost: StepCost,
        encodings: EncodingTurns,
        *,
        num_slots: int,
        expected_left: Callable[[Sequence], int],
        lane: Callable[[Sequence], int],
    ) -> None:
        self._running = running
        self._encodings = encodings
        self._encoding_ms = 0.0
        self._expected_left = expected_left
        self._lane = lane
        self._token_ms = cost.predict_ms(READING_TOKENS) / READING_TOKENS
        sizes = Counter(sequence.request.adapter for sequence in running).values()
        self._round_ms = sum(map(cost.predict_ms, sizes)) or cost.predict_ms(1)
        self._backlog = _Backlog()
        self._places, self._best_lane = [0] * num_slots, -1

    def enter(self, sequence: Sequence) -> float:
        """Return the milliseconds until the next sequence's first token."""
        self._open(self._lane(sequence))
        start = heapq.heappop(self._places)
        heapq.heappush(self._places, start + max(1, self._expected_left(sequence)))
        self._backlog.add(sequence, sequence.expected_pending)
        own_ms = self._encodings.price_ms(sequence)
        self._encoding_ms += own_ms
        return self._ms(start, sequence.request.adapter, waits_for_encoder=own_ms > 0)

    def newcomer_ms(self, lane: int) -> float:
        self._open(lane)
        return self._ms(self._places[0], None)

    def _open(self, lane: int) -> None:
        """Sequences that run in this lane keep their places from later ones."""
        if lane <= self._best_lane:
            return
        joining = [s for s in self._running if self._best_lane < self._lane(s) <= lane]
        leaving = [max(1, self._expected_left(sequence)) for sequence in joining]
        taken = [steps for steps in self._places if steps] + leaving
        num_places, num_free = len(self._places), max(0, len(self._places) - len(taken))
        self._places = sorted([0] * num_free + taken)[:num_places]
        for sequence in joining:
            self._backlog.join(sequence)
            self._encoding_ms += self._encodings.price_ms(sequence)
        self._best_lane = lane

    def _ms(self, start: int, adapter: str | None, *, waits_for_encoder: bool = False) -> float:
        """A sequence for the encoder waits for all items before it, any other for a slice behind each
        step."""
        num_tokens = self._backlog.tokens_until(adapter)
        ms = start * self._round_ms + num_tokens * self._token_ms
        slice_ms = self._encodings.slice_ms
        if waits_for_encoder:
            between_ms = self._round_ms if self._running else 0.0
            return ms + self._encoding_ms * (1 + between_ms / slice_ms)
        num_steps = 1 + start + num_tokens // READING_TOKENS
        return ms + min(self._encoding_ms, num_steps * slice_ms)


class _Backlog:
    """Prompt tokens still to be computed, by adapter group. A group that decodes always has work."""

    def __init__(self) -> None:
        self._tokens = Counter[str | None]()
        self._writing = set[str | None]()

    def join(self, sequence: Sequence) -> None:
        if sequence.pending > 1:
            self.add(sequence, sequence.pending)
        else:
            self._writing.add(sequence.request.adapter)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self._tokens[sequence.request.adapter] += num_tokens

    def tokens_until(self, adapter: str | None) -> int:
        own, writing = self._tokens[adapter], self._writing - {adapter}
        reading = (n for other, n in self._tokens.items() if other != adapter and other not in writing)
        return own * (1 + len(writing)) + sum(min(own, tokens) for tokens in reading)


_MOST_PLACES = 200
"""Places that are reported, which bounds the message: 50 bytes each, twice a second."""
_LOOKED_AT = 64
"""Sequences of a lane whose times are added up. It bounds a forecast's work, up to ten times a second."""
_LEAST_ROOM = 0.25
"""Minimum share of a step for a prompt, which keeps estimates finite."""
_NUM_RUNNING = (1, 2, 4, 8, 16, 32, 64)
_MANY_PAIRS = 100_000


@dataclass(eq=False)
class EtaEstimator:
    sequences: LiveSequences
    waiting: AdmissionQueue
    running: Mapping[int, Sequence]
    costs: LearnedCosts
    encodings: EncodingTurns
    policy: PriorityPolicy
    _: KW_ONLY
    num_slots: int
    stall_ms: float

    def __post_init__(self) -> None:
        self._decode_tokens = min(READING_TOKENS, self.num_slots)
        self._work_ms = [0.0, 0.0]
        """Computed tokens by priority, at the cost of full steps."""

    def computed(self, plan: StepPlan, adapter: str | None) -> None:
        if not plan.parts:
            return
        cost = self.costs.of(adapter)
        reading_ms = _token_ms(cost, READING_TOKENS)
        decoding_ms = _token_ms(cost, self._decode_tokens)
        attention_ms = _pair_ms(cost) * plan.attended / max(1, plan.num_tokens)
        for sequence, num_tokens in plan.parts.items():
            token_ms = decoding_ms if num_tokens == 1 else reading_ms
            self._work_ms[sequence.request.priority] += num_tokens * (token_ms + attention_ms)

    def queue_places(self, slowdown: float = 1.0) -> list[QueuePlace]:
        line, first = self._line(), islice(self.waiting.in_order(), _MOST_PLACES)
        return [QueuePlace(s.request.id, n, slowdown * line.enter(s)) for n, s in enumerate(first, 1)]

    def first_token_ms(self, sequence: Sequence, slowdown: float = 1.0) -> float:
        """Estimate for a running sequence, whose prompt takes turns with others and waits for each stream."""
        own = max(0, sequence.request.num_tokens - sequence.computed)
        cost, running = self.costs.of(sequence.request.adapter), self.running.values()
        others = [s.pending for s in running if s is not sequence and s.pending > 1]
        num_streams = sum(s.is_decoding for s in running)
        num_tokens = own + sum(min(own, pending) for pending in others)
        reading_ms = num_tokens * _reading_ms(cost, num_streams, self.stall_ms)
        attention_ms = own * (sequence.computed + own / 2) * _pair_ms(cost)
        return slowdown * (reading_ms + attention_ms + self.encodings.price_ms(sequence))

    def forecast(self) -> Forecast:
        running, cost = list(self.running.values()), self.costs.model
        attended = sum(len(sequence.tokens) for sequence in running)
        step_ms = cost.predict_ms(len(running), attended) if running else 0.0
        context = attended // max(1, len(running))
        line = self._line()
        wait_ms = [_newcomer_ms(self.waiting, line, self.policy.lane(one)) for one in _NEWCOMERS]
        num_streams = sum(s.request.priority is Priority.INTERACTIVE and s.is_decoding for s in running)
        return Forecast(
            # A newcomer comes somewhere within the step that runs: half of it is left.
            wait_ms=ByPriority(*(ms + step_ms / 2 for ms in wait_ms)),
            token_ms=_reading_ms(cost, num_streams, self.stall_ms),
            attended_ms=_pair_ms(cost),
            stream_ms=tuple(cost.predict_ms(number, number * context) for number in _NUM_RUNNING),
            work_ms=ByPriority(*self._work_ms),
            num_live=self.sequences.counts,
        )

    def _line(self) -> WaitingLine:
        return WaitingLine(
            list(self.running.values()),
            self.costs.model,
            self.encodings,
            num_slots=self.num_slots,
            expected_left=self.sequences.expected_left,
            lane=self.policy.lane,
        )


def _newcomer_ms(waiting: AdmissionQueue, line: WaitingLine, lane: int) -> float:
    if lane not in waiting.lanes:
        return line.newcomer_ms(lane)
    before_ms = line.newcomer_ms(lane)
    seen = list(islice(waiting.in_turn(lane), _LOOKED_AT))
    for sequence in seen:
        line.enter(sequence)
    seen_ms = line.newcomer_ms(lane) - before_ms
    return before_ms + seen_ms * waiting.num_in(lane) / len(seen)


def _reading_ms(cost: StepCost, num_streams: int, stall_ms: float) -> float:
    token_ms = _token_ms(cost, READING_TOKENS)
    longest_ms = min(stall_ms, cost.predict_ms(READING_TOKENS))
    room = max(_LEAST_ROOM, 1 - num_streams * token_ms / longest_ms)
    return token_ms / room


def _token_ms(cost: StepCost, num_tokens: int) -> float:
    return cost.predict_ms(num_tokens) / num_tokens


def _pair_ms(cost: StepCost) -> float:
    return (cost.predict_ms(READING_TOKENS, _MANY_PAIRS) - cost.predict_ms(READING_TOKENS)) / _MANY_PAIRS


_NEWCOMER = GenerationRequest(id="", tokens=(0,), max_tokens=1, sampling=Sampling(seed=0))
_NEWCOMERS = tuple(
    Sequence(msgspec.structs.replace(_NEWCOMER, priority=priority), (), (), 0, 0.0) for priority in Priority
)
