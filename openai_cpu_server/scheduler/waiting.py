"""The waiting room: lanes by priority; in a lane clients take turns; each has its own in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Iterator

from openai_cpu_server.scheduler.policy import Policy
from openai_cpu_server.scheduler.sequence import Sequence

_Entry = tuple[float, int, Sequence]
"""(policy's key, arrival, sequence): sorts without ever comparing sequences."""
_Lane = OrderedDict[str, list[_Entry]]
"""The clients of one lane in the order of their turns, each with its sequences sorted."""


class WaitingRoom:
    """Sequences that hold no slot."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[int, _Lane] = {}
        self._sizes: Counter[int] = Counter()
        """Sequences in each lane."""

    def __len__(self) -> int:
        return self._sizes.total()

    @property
    def lanes(self) -> list[int]:
        """The lanes in which somebody waits, the best first."""
        return sorted(self._lanes)

    def num_behind(self, lane: int) -> int:
        """Sequences that wait in worse lanes."""
        return sum(size for other, size in self._sizes.items() if other > lane)

    def enter(self, sequence: Sequence) -> None:
        lane = self._lanes.setdefault(self._policy.lane(sequence), OrderedDict())
        insort(lane.setdefault(self._policy.client(sequence), []), self._entry(sequence))
        self._sizes[self._policy.lane(sequence)] += 1

    def leave(self, sequence: Sequence) -> None:
        """Take it out, wherever it stands. Its client's next turn comes after everybody else's."""
        number, client = self._policy.lane(sequence), self._policy.client(sequence)
        lane = self._lanes[number]
        entries = lane[client]
        at = bisect_left(entries, self._entry(sequence))
        assert entries[at][2] is sequence
        del entries[at]
        self._sizes[number] -= 1
        if entries:
            lane.move_to_end(client)
            return
        del lane[client]
        if not lane:
            del self._lanes[number]

    def in_turn(self, lane: int) -> Iterator[Sequence]:
        """Everybody's first, then everybody's second, ...; no more is looked at than is taken.

        The room must not change meanwhile.
        """
        clients = self._lanes[lane].values()
        for rank in range(max(map(len, clients))):
            yield from (entries[rank][2] for entries in clients if rank < len(entries))

    def in_order(self) -> Iterator[Sequence]:
        """All who wait, lane by lane, as they take turns. The room must not change meanwhile."""
        for lane in self.lanes:
            yield from self.in_turn(lane)

    def _entry(self, sequence: Sequence) -> _Entry:
        return (self._policy.key(sequence), sequence.arrival, sequence)
