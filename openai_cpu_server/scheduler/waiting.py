"""The waiting room: lanes by priority; in a lane clients take turns; of a client in the policy's order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator

from openai_cpu_server.scheduler.policy import Policy
from openai_cpu_server.scheduler.sequence import Sequence

_Entry = tuple[float, int, Sequence]
"""(policy's key, arrival, sequence): sorts without ever comparing sequences."""


class _Lane:
    """The clients of one lane in the order of their turns, each with its sequences sorted."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, list[_Entry]] = OrderedDict()

    @property
    def first_key(self) -> float:
        """Of whoever is next."""
        return next(iter(self.clients.values()))[0][0]

    def in_turn(self) -> Iterator[Sequence]:
        """Everybody's first, then everybody's second, ...; no more is looked at than is taken."""
        for rank in range(max(map(len, self.clients.values()))):
            yield from (entries[rank][2] for entries in self.clients.values() if rank < len(entries))


class WaitingRoom:
    """Sequences that hold no slot."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._lanes: dict[int, _Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def enter(self, sequence: Sequence) -> None:
        lane = self._lanes.setdefault(self._policy.lane(sequence), _Lane())
        insort(lane.clients.setdefault(self._policy.client(sequence), []), self._entry(sequence))
        self._size += 1

    def leave(self, sequence: Sequence) -> None:
        """Wherever it stands. Its client's next turn comes after everybody else's."""
        number, client = self._policy.lane(sequence), self._policy.client(sequence)
        clients = self._lanes[number].clients
        entries = clients[client]
        at = bisect_left(entries, self._entry(sequence))
        assert entries[at][2] is sequence
        del entries[at]
        self._size -= 1
        if entries:
            clients.move_to_end(client)
            return
        del clients[client]
        if not clients:
            del self._lanes[number]

    def is_ahead_of_turn(self, sequence: Sequence) -> bool:
        """Whether others of a better lane wait behind it."""
        return min(self._lanes) < self._policy.lane(sequence)

    def in_order(self) -> Iterator[Sequence]:
        """Who is to be admitted first, second, ... The room must not change meanwhile."""
        for lane in sorted(self._lanes.values(), key=lambda lane: lane.first_key):
            yield from lane.in_turn()

    def _entry(self, sequence: Sequence) -> _Entry:
        return (self._policy.key(sequence), sequence.arrival, sequence)
