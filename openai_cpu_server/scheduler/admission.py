from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from openai_cpu_server.contract.replica import ByPriority
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.fairness import alternating
from openai_cpu_server.scheduler.memory import NO_REUSE, PrefixReuse, SequenceMemory, find_reuse
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence, SequenceStatus
from openai_cpu_server.scheduler.speculation.speculator import Speculator

_Entry = tuple[float, int, Sequence]
"""(policy's key, arrival, sequence): sorts without comparing sequences."""
_Group = OrderedDict[str, list[_Entry]]
"""Clients in order, each with its sorted sequences."""
_Lane = OrderedDict[str, _Group]


@dataclass(eq=False)
class AdmissionQueue:
    """Sequences without a slot. All admissions count equally, so queues that move to the end suffice."""

    policy: PriorityPolicy
    _lanes: dict[int, _Lane] = field(default_factory=dict)
    _sizes: Counter[int] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self._sizes.total()

    @property
    def lanes(self) -> list[int]:
        return sorted(self._lanes)

    def num_behind(self, lane: int) -> int:
        return sum(size for other, size in self._sizes.items() if other > lane)

    def num_in(self, lane: int) -> int:
        return self._sizes[lane]

    def enter(self, sequence: Sequence) -> None:
        lane = self._lanes.setdefault(self.policy.lane(sequence), OrderedDict())
        group, client = self.policy.turns(sequence)
        insort(lane.setdefault(group, OrderedDict()).setdefault(client, []), self._entry(sequence))
        self._sizes[self.policy.lane(sequence)] += 1

    def leave(self, sequence: Sequence) -> None:
        """Remove a sequence, and move its group and client to the end."""
        number, (group, client) = self.policy.lane(sequence), self.policy.turns(sequence)
        lane = self._lanes[number]
        entries = lane[group][client]
        at = bisect_left(entries, self._entry(sequence))
        assert entries[at][2] is sequence
        del entries[at]
        self._sizes[number] -= 1
        lane[group].move_to_end(client)
        lane.move_to_end(group)
        if not entries:
            del lane[group][client]
        if not lane[group]:
            del lane[group]
        if not lane:
            del self._lanes[number]

    def in_turn(self, lane: int) -> Iterator[Sequence]:
        """Yield the first sequence of each client, then the second of each. The queue must not change
        meanwhile."""
        groups = self._lanes[lane].values()
        for _, _, sequence in alternating([alternating(group.values()) for group in groups]):
            yield sequence

    def in_order(self) -> Iterator[Sequence]:
        for lane in self.lanes:
            yield from self.in_turn(lane)

    def _entry(self, sequence: Sequence) -> _Entry:
        return (self.policy.key(sequence), sequence.arrival, sequence)


_LOOK_AHEAD = 32
"""Sequences of a lane examined per step, because the first ones may wait for another's prefix."""


class _Outcome(enum.Enum):
    ADMITTED = enum.auto()
    NO_CELLS = enum.auto()
    """The first sequence that can run waits for cells, which later ones may not take."""
    NONE_READY = enum.auto()
    """All slots are taken, or all sequences wait for a prefix."""


class WaitsFor(enum.Enum):
    SLOT = "slot"
    CELLS = "cells"
    PREFIX = "prefix"


@dataclass(eq=False)
class Admission:
    waiting: AdmissionQueue
    memory: SequenceMemory
    cache: SavedPrefixes | None
    """Saved prefixes, or None to disable their reuse."""
    policy: PriorityPolicy
    _: KW_ONLY
    num_slots: int
    num_seats: int
    """Slots reserved for worse lanes while those have work, so that batch work gets its share."""
    num_preemptions: int = 0

    def admit(self) -> None:
        """Admit all sequences that can run. A lane without a slot stops no other one."""
        outcome = _Outcome.ADMITTED
        while outcome is _Outcome.ADMITTED:
            outcomes = (self._admit_from(lane) for lane in self.waiting.lanes if self._has_slot(lane))
            outcome = next((one for one in outcomes if one is not _Outcome.NONE_READY), _Outcome.NONE_READY)

    def waits_for(self, sequence: Sequence) -> WaitsFor:
        if not self._has_slot(self.policy.lane(sequence)):
            return WaitsFor.SLOT
        return WaitsFor.PREFIX if self._find_reuse(sequence) is None else WaitsFor.CELLS

    def release(self, sequence: Sequence) -> None:
        self.memory.vacate(sequence)
        sequence.release()
        self.num_preemptions += 1
        self.waiting.enter(sequence)

    def running_in_order(self) -> list[Sequence]:
        policy = self.policy
        return sorted(self.memory.running.values(), key=lambda s: (policy.lane(s), policy.key(s), s.arrival))

    def _has_slot(self, lane: int) -> bool:
        lanes = [self.policy.lane(sequence) for sequence in self.memory.running.values()]
        num_worse = sum(other > lane for other in lanes)
        num_reserved = min(self.num_seats, num_worse + self.waiting.num_behind(lane))
        return len(lanes) - num_worse < self.num_slots - num_reserved

    def _admit_from(self, lane: int) -> _Outcome:
        for newcomer in islice(self.waiting.in_turn(lane), _LOOK_AHEAD):
            reuse = self._find_reuse(newcomer)
            if reuse is None:
                continue
            num_preemptions = self.num_preemptions
            if not self._make_way(newcomer, reuse):
                return _Outcome.NO_CELLS
            if self.num_preemptions > num_preemptions:
                # A released sequence may have been the source to share from, and its saved blocks may have
                # evicted the blocks to restore.
                reuse = self._find_reuse(newcomer) or NO_REUSE
            self.waiting.leave(newcomer)
            self.memory.place(newcomer, reuse)
            return _Outcome.ADMITTED
        return _Outcome.NONE_READY

    def _find_reuse(self, newcomer: Sequence) -> PrefixReuse | None:
        if self.cache is None:
            return NO_REUSE
        return find_reuse(newcomer, self.memory.running.values(), self.cache, self.policy)

    def _make_way(self, newcomer: Sequence, reuse: PrefixReuse) -> bool:
        """Preempt the last in order first, but none if all are not enough."""
        victims: list[Sequence] = []
        lane = self.policy.lane(newcomer)
        lesser = [s for s in self.running_in_order() if self.policy.lane(s) > lane]
        while not self.memory.has_place(newcomer, reuse, without=victims):
            if not lesser:
                return False
            victims.append(lesser.pop())
        for victim in victims:
            self.release(victim)
        return True


_REMEMBERED = 64
"""Lengths to remember per kind. The mean of 64 lies within an eighth of their spread."""
_ENOUGH = 4
"""Lengths below which a more general kind is used."""
_MAX_KINDS = 1024

_Kind = tuple[str, ...]


class OutputLengths:
    def __init__(self) -> None:
        self._by_kind: OrderedDict[_Kind, deque[int]] = OrderedDict()

    def learn(self, request: GenerationRequest, num_tokens: int) -> None:
        for kind in _kinds(request):
            self._by_kind.setdefault(kind, deque(maxlen=_REMEMBERED)).append(num_tokens)
            self._by_kind.move_to_end(kind)
        while len(self._by_kind) > _MAX_KINDS:
            self._by_kind.popitem(last=False)

    def left(self, request: GenerationRequest, num_output: int = 0) -> int:
        """Estimate the tokens behind `num_output` by remembered longer outputs, or `max_tokens` without
        any."""
        most = request.max_tokens - num_output
        for kind in _kinds(request):
            longer = [length for length in self._by_kind.get(kind, ()) if length > num_output]
            if len(longer) >= _ENOUGH:
                return max(min(1, most), min(most, round(sum(longer) / len(longer)) - num_output))
        return max(0, most)


def _kinds(request: GenerationRequest) -> tuple[_Kind, ...]:
    return (request.route, request.client), (request.route,), ()


@dataclass(eq=False)
class LiveSequences:
    """The engine's core submits and finishes sequences."""

    memory: SequenceMemory
    waiting: AdmissionQueue
    cache: SavedPrefixes | None
    speculator: Speculator | None
    _lengths: OutputLengths = field(default_factory=OutputLengths)
    _by_id: dict[str, Sequence] = field(default_factory=dict)
    _arrivals: int = 0
    _arrived: list[Sequence] = field(default_factory=list)
    """Arrived since the last step of their group."""

    def __post_init__(self) -> None:
        self._counts = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def counts(self) -> ByPriority:
        return ByPriority(*self._counts.values())

    @property
    def best_priority(self) -> Priority | None:
        return next((priority for priority in Priority if self._counts[priority]), None)

    @property
    def preempted(self) -> list[Sequence]:
        return [s for s in self._by_id.values() if s.num_preemptions and s.status is SequenceStatus.WAITING]

    def get(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    def uses_adapter(self, key: str) -> bool:
        return any(sequence.request.adapter == key for sequence in self._by_id.values())

    def submit(
        self,
        request: GenerationRequest,
        output: tuple[int, ...] = (),
        beginning: tuple[int, ...] = (),
        *,
        now_s: float = 0.0,
    ) -> Sequence:
        """Accept a request that fits into the pool. `output`: from before a crash; `beginning`: forced behind
        it."""
        ledger = self.memory.ledger
        assert ledger.blocks_for(request.total_tokens) <= ledger.num_blocks
        expected = len(output) + self._lengths.left(request, len(output))
        sequence = Sequence(request, output, beginning, self._arrivals, now_s, expected)
        if self.cache is not None:
            saved = self.cache.match(sequence.tokens, request.cells_namespace, sequence.reusable)
            sequence.expected_reuse = saved.num_tokens
        self._arrivals += 1
        self._arrived.append(sequence)
        self._by_id[request.id] = sequence
        self._counts[request.priority] += 1
        self.waiting.enter(sequence)
        return sequence

    def complete(self, sequence: Sequence) -> None:
        self._lengths.learn(sequence.request, sequence.num_output)
        self.finish(sequence)

    def finish(self, sequence: Sequence) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self.memory.vacate(sequence)
        else:
            self.waiting.leave(sequence)
        sequence.finish()
        if self.speculator is not None:
            self.speculator.forget(sequence)
        del self._by_id[sequence.request.id]
        self._counts[sequence.request.priority] -= 1

    def expected_left(self, sequence: Sequence) -> int:
        return self._lengths.left(sequence.request, sequence.num_output)

    # -- for the composition of a step -------------------------------------------------------------------

    @property
    def groups_of_newcomers(self) -> frozenset[str | None]:
        """Adapters of interactive sequences that got a slot and no step yet."""
        return frozenset(s.request.adapter for s in self._arrived if _is_newcomer(s))

    def planned(self, adapter: str | None, *, is_floor: bool) -> None:
        """Record the next step's group. A batch step (`is_floor`) serves no new sequence."""
        newcomers = (s for s in self._arrived if _is_newcomer(s))
        self._arrived = [s for s in newcomers if is_floor or s.request.adapter != adapter]

    def check(self) -> None:
        for sequence in self.memory.running.values():
            assert self._by_id[sequence.request.id] is sequence
        assert len(self.waiting) + len(self.memory.running) == len(self._by_id)


def _is_newcomer(arrived: Sequence) -> bool:
    return arrived.status is SequenceStatus.RUNNING and arrived.request.priority is Priority.INTERACTIVE
