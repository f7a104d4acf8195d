"""Queue of waiting sequences, their admission to slots and KV cells, and preemption."""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from openai_cpu_server.fairness import alternating
from openai_cpu_server.scheduler.memory import SequenceMemory
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.reuse import NOTHING, PrefixReuse, find_reuse
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence

_Entry = tuple[float, int, Sequence]
"""(policy's key, arrival, sequence): sorts without ever comparing sequences."""
_Group = OrderedDict[str, list[_Entry]]
"""Clients of one group in the order of their turns, each with its sorted sequences."""
_Lane = OrderedDict[str, _Group]
"""Groups of one lane in the order of their turns."""


@dataclass(eq=False)
class AdmissionQueue:
    """Sequences without a slot.

    A turn here is an admission, and all admissions count equally. So queues that move to the end suffice,
    without the accounts of `fairness.FairTurns`.
    """

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
        """Remove a sequence. Its group goes to the end of the lane, and its client to that of the group."""
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
        """Yield the first sequence of each client, then the second of each, and so on; do not read ahead.
        The queue must not change meanwhile."""
        groups = self._lanes[lane].values()
        for _, _, sequence in alternating([alternating(group.values()) for group in groups]):
            yield sequence

    def in_order(self) -> Iterator[Sequence]:
        """Yield all sequences lane by lane. The queue must not change meanwhile."""
        for lane in self.lanes:
            yield from self.in_turn(lane)

    def _entry(self, sequence: Sequence) -> _Entry:
        return (self.policy.key(sequence), sequence.arrival, sequence)


_LOOK_AHEAD = 32
"""Maximum waiting sequences of a lane examined per step, because the first ones may wait for another's
prefix. Each costs a prefix match of about 20 microseconds."""


class _Outcome(enum.Enum):
    ADMITTED = enum.auto()
    NO_CELLS = enum.auto()
    """The first sequence that can run waits for KV cells, which later ones may not take."""
    NOBODY = enum.auto()
    """No slot is free, or all sequences wait for a prefix that is being computed."""


class WaitsFor(enum.Enum):
    SLOT = "slot"
    CELLS = "cells"
    PREFIX = "prefix"
    """Another sequence is computing a common prefix."""


@dataclass(eq=False)
class Admission:
    waiting: AdmissionQueue
    memory: SequenceMemory
    cache: SavedPrefixes | None
    """Saved prefixes, or None to disable reuse of prefixes."""
    policy: PriorityPolicy
    _: KW_ONLY
    num_slots: int
    num_seats: int
    """Slots reserved for worse lanes while those have work, so that batch work gets its share of
    admissions; it may hold more while no better lane wants them."""
    num_preemptions: int = 0

    def admit(self) -> None:
        """Admit all sequences that can run, better lanes first. A lane without a slot stops no other one."""
        outcome = _Outcome.ADMITTED
        while outcome is _Outcome.ADMITTED:
            outcomes = (self._admit_from(lane) for lane in self.waiting.lanes if self._has_slot(lane))
            outcome = next((one for one in outcomes if one is not _Outcome.NOBODY), _Outcome.NOBODY)

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
        num_kept = min(self.num_seats, num_worse + self.waiting.num_behind(lane))
        return len(lanes) - num_worse < self.num_slots - num_kept

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
                reuse = self._find_reuse(newcomer) or NOTHING
            self.waiting.leave(newcomer)
            self.memory.place(newcomer, reuse)
            return _Outcome.ADMITTED
        return _Outcome.NOBODY

    def _find_reuse(self, newcomer: Sequence) -> PrefixReuse | None:
        if self.cache is None:
            return NOTHING
        return find_reuse(newcomer, self.memory.running.values(), self.cache, self.policy)

    def _make_way(self, newcomer: Sequence, reuse: PrefixReuse) -> bool:
        """Preempt sequences of worse lanes, the last in order first. If even that is not enough, return
        False without preempting any."""
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
