"""Fair shares of a resource, such as milliseconds or tokens, for steps, adapters, embeddings and engines that
share cores. Pure: no clock and no I/O."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_ROUNDING = 1e-6
"""Tolerance for a price against a sum of small amounts."""


class Credit:
    """Unspent share of a class of work beside a better class: `share` of all usage, its own included, while
    both want turns. It saves for one turn, at most the last price or `most`."""

    def __init__(self, share: float, *, most: float = 0.0) -> None:
        """`most`: maximum of the savings where turns are cheaper."""
        self.amount = 0.0
        self._share = share
        self._most = most
        self._price = math.inf

    def account(self, used: float, own: float) -> None:
        """`used` includes `own`, the usage of this class."""
        amount = max(0.0, self.amount + self._share * used - own)
        self.amount = min(amount, max(self._most, self._price))

    def pays_for(self, price: float) -> bool:
        """Return True if the savings cover a turn at this price, and otherwise save for it."""
        self._price = price
        return self.amount >= price - _ROUNDING

    def due_in(self, price: float) -> float:
        """Usage by others until the savings cover this price; infinite without a share."""
        return max(0.0, price - self.amount) / self._share if self._share else math.inf

    def lapse(self) -> None:
        self.amount = 0.0


class _Account(NamedTuple):
    """Accounts sort by turn; no two with the same turns are equal."""

    used: float
    served_at: int
    """Number of its last turn, or 0."""
    joined_at: int


class FairTurns(Generic[K]):
    """Participants by least usage, then by longest wait. A new one starts with the least usage of those
    present, because absence earns nothing; more is remembered while others wait."""

    def __init__(self, *, favours_newcomers: bool) -> None:
        """`favours_newcomers`: of equals, a newcomer is first. A steady flow of new participants would starve
        the others."""
        self._favours_newcomers = favours_newcomers
        self._present: dict[K, _Account] = {}
        self._away: dict[K, _Account] = {}
        """Accounts of absent participants with more than the least usage."""
        self._queue: list[tuple[_Account, K]] = []
        """Heap of accounts, with outdated ones, which are skipped."""
        self._num_turns = 0

    def __contains__(self, key: K) -> bool:
        return key in self._present

    def __len__(self) -> int:
        return len(self._present)

    @property
    def first(self) -> K:
        """Return the next participant. At least one must exist."""
        while self._present.get(self._queue[0][1]) is not self._queue[0][0]:
            heappop(self._queue)
        return self._queue[0][1]

    @property
    def order(self) -> list[K]:
        return sorted(self._present, key=self._present.__getitem__)

    def lead(self, key: K, other: K) -> float:
        return self._present[key].used - self._present[other].used

    def join(self, key: K) -> None:
        if key in self._present:
            return
        self._num_turns += 1
        least = self._present[self.first].used if self._present else 0.0
        served_at = 0 if self._favours_newcomers else self._num_turns
        used, served_at, _ = self._away.pop(key, _Account(0.0, served_at, 0))
        self._set(key, _Account(max(used, least), served_at, self._num_turns))

    def leave(self, key: K) -> None:
        account = self._present.pop(key, None)
        if account is not None:
            self._away[key] = account
            # Absent accounts that would start even when they return are forgotten.
            least = self._present[self.first].used if self._present else math.inf
            self._away = {other: away for other, away in self._away.items() if away.used > least}

    def only(self, keys: Iterable[K]) -> None:
        """Make these the participants."""
        staying = dict.fromkeys(keys)
        for key in [key for key in self._present if key not in staying]:
            self.leave(key)
        for key in staying:
            self.join(key)

    def use(self, key: K, amount: float) -> None:
        account = self._present[key]
        self._num_turns += 1
        self._set(key, _Account(account.used + amount, self._num_turns, account.joined_at))

    def copy(self) -> FairTurns[K]:
        copied = FairTurns[K](favours_newcomers=self._favours_newcomers)
        copied._present, copied._away = self._present.copy(), self._away.copy()
        copied._queue, copied._num_turns = self._queue.copy(), self._num_turns
        return copied

    def _set(self, key: K, account: _Account) -> None:
        self._present[key] = account
        heappush(self._queue, (account, key))
        if len(self._queue) > 2 * len(self._present) + 8:  # most of them are old
            self._queue = sorted((account, key) for key, account in self._present.items())


Path = tuple[str, ...]
"""Groups down to the participant."""


class NestedTurns:
    """Fair turns of groups and their members. Additional names within a group earn it nothing."""

    def __init__(self) -> None:
        self._turns = FairTurns[str](favours_newcomers=False)
        self._below: dict[str, NestedTurns] = {}
        self._borrowed: set[str] = set()
        """Subgroups shared with the original of a copy."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def first(self) -> Path:
        """Return the next participant. At least one must exist."""
        key = self._turns.first
        return (key, *self._below[key].first) if key in self._below else (key,)

    @property
    def order(self) -> list[Path]:
        """Participants in the order of small turns."""
        below = self._below
        return list(
            alternating(
                [(key, *path) for path in below[key].order] if key in below else [(key,)]
                for key in self._turns.order
            )
        )

    def join(self, path: Path) -> None:
        key, below = path[0], path[1:]
        self._turns.join(key)
        if below:
            self._below.setdefault(key, NestedTurns())
            self._own(key).join(below)

    def leave(self, path: Path) -> None:
        key, below = path[0], path[1:]
        if below:
            self._own(key).leave(below)
            if self._below[key]:
                return
            del self._below[key]
        self._turns.leave(key)

    def use(self, path: Path, amount: float) -> None:
        key, below = path[0], path[1:]
        self._turns.use(key, amount)
        if below:
            self._own(key).use(below, amount)

    def copy(self) -> NestedTurns:
        """Copy for trying out turns, whose subgroups are copied on change."""
        copied = NestedTurns()
        copied._turns, copied._below = self._turns.copy(), self._below.copy()
        copied._borrowed = set(self._below)
        return copied

    def _own(self, key: str) -> NestedTurns:
        if key in self._borrowed:
            self._borrowed.remove(key)
            self._below[key] = self._below[key].copy()
        return self._below[key]


def alternating(queues: Iterable[Iterable[T]]) -> Iterator[T]:
    """Yield the first item of each queue, then the second. Queues are not read ahead."""
    left = [iter(queue) for queue in queues]
    while left:
        still = []
        for queue in left:
            for item in islice(queue, 1):
                still.append(queue)
                yield item
        left = still


class FairQueue(Generic[T]):
    """Tickets of callers that wait for places; the least usage is next. A caller holds at most `most`, so
    that its slow work never keeps all places from others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns = NestedTurns()
        self._waiting: dict[Path, list[T]] = {}
        self._held: dict[Path, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def num_held(self) -> int:
        return sum(self._held.values())

    def add(self, caller: Path, ticket: T) -> None:
        self._turns.join(caller)
        self._waiting.setdefault(caller, []).append(ticket)

    def remove(self, caller: Path, ticket: T) -> None:
        self._waiting[caller].remove(ticket)
        self._leave_if_gone(caller)

    def take(self) -> T | None:
        """Give a place to the next ticket, or return None."""
        for caller in self._in_turn():
            if self._waiting.get(caller) and self._held.get(caller, 0) < self._most:
                self._held[caller] = self._held.get(caller, 0) + 1
                return self._waiting[caller].pop(0)
        return None

    def _in_turn(self) -> Iterator[Path]:
        """Sort all callers only when the first one is rejected."""
        if self._turns:
            yield self._turns.first
            yield from self._turns.order

    def give_back(self, caller: Path, used: float) -> None:
        self._turns.use(caller, used)
        self._held[caller] -= 1
        self._leave_if_gone(caller)

    def _leave_if_gone(self, caller: Path) -> None:
        if not self._waiting.get(caller):
            self._waiting.pop(caller, None)
            if not self._held.get(caller):
                self._held.pop(caller, None)
                self._turns.leave(caller)
