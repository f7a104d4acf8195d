"""Fair shares of what several use in turn, be it milliseconds or tokens. Pure: no clock, and no I/O.

Two rules serve everywhere: steps within one model, turns of adapters, of embeddings, and of whole engines.
Work of one class takes turns by what each has used (`FairTurns`). A class that others go before earns a share
of what all use, and spends it on turns of its own (`Credit`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")

_ROUNDING = 1e-6
"""So much may be missing where a price is compared with a sum of many small amounts."""


class Credit:
    """What a class of work has earned beside another that goes first, and has not spent.

    It earns `share` of all that is used while both want it, its own turns included. So it gets that share of
    any longer while, however dear one turn is. It owes nothing for what it is given otherwise, and saves for
    one turn at a time: it never has more than the last price that was asked for, or `most`.
    """

    def __init__(self, share: float, *, most: float = 0.0) -> None:
        """`share`: 0 to 1; 0: it earns nothing. `most`: what it may have even where turns are cheaper."""
        self.amount = 0.0
        self._share = share
        self._most = most
        self._price = math.inf

    def account(self, used: float, own: float) -> None:
        """So much was used by all, `own` of it by the class that earns."""
        amount = max(0.0, self.amount + self._share * used - own)
        self.amount = min(amount, max(self._most, self._price))

    def pays_for(self, price: float) -> bool:
        """Whether there is enough for a turn that costs so much. If not, it saves for that."""
        self._price = price
        return self.amount >= price - _ROUNDING

    def due_in(self, price: float) -> float:
        """How much must be used by others until it pays for such a turn; infinite: it earns nothing."""
        return max(0.0, price - self.amount) / self._share if self._share else math.inf

    def lapse(self) -> None:
        """Only one of the classes wants anything: credit is for work that waits beside that of the other."""
        self.amount = 0.0


class _Account(NamedTuple):
    """What one has used. Accounts sort by whose turn it is; no two of the same turns are equal."""

    used: float
    served_at: int
    """The number of its last turn; 0: it has had none."""
    joined_at: int


class FairTurns(Generic[Key]):
    """Whose turn it is: who has used least; of equals, who has waited longest.

    Who comes, or comes back, starts even with who has used least, for nobody saves up by being away; nor is
    what it had used beyond that forgotten while others wait.
    """

    def __init__(self, *, favours_newcomers: bool) -> None:
        """`favours_newcomers`: of equals, who has had no turn yet is first. Not where there are ever new
        ones, as with requests: they would lock out who stays."""
        self._favours_newcomers = favours_newcomers
        self._present: dict[Key, _Account] = {}
        self._away: dict[Key, _Account] = {}
        """Those who have left, and had used more than who has used least of those who are present."""
        self._queue: list[tuple[_Account, Key]] = []
        """A heap of the accounts of those who are present, and of older ones, which are passed over."""
        self._num_turns = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._present

    def __len__(self) -> int:
        return len(self._present)

    @property
    def first(self) -> Key:
        """Who is next. There must be somebody."""
        while self._present.get(self._queue[0][1]) is not self._queue[0][0]:
            heappop(self._queue)
        return self._queue[0][1]

    @property
    def order(self) -> list[Key]:
        """All who are present, who is next first."""
        return sorted(self._present, key=self._present.__getitem__)

    def lead(self, key: Key, other: Key) -> float:
        """How much more the first has used."""
        return self._present[key].used - self._present[other].used

    def join(self, key: Key) -> None:
        """It takes part from now on."""
        if key in self._present:
            return
        self._num_turns += 1
        least = self._present[self.first].used if self._present else 0.0
        served_at = 0 if self._favours_newcomers else self._num_turns
        used, served_at, _ = self._away.pop(key, _Account(0.0, served_at, 0))
        self._set(key, _Account(max(used, least), served_at, self._num_turns))

    def leave(self, key: Key) -> None:
        """It takes no part any more, until it joins again."""
        account = self._present.pop(key, None)
        if account is not None:
            self._away[key] = account
            self._forget()

    def only(self, keys: Iterable[Key]) -> None:
        """These take part now, and no others."""
        staying = dict.fromkeys(keys)
        for key in [key for key in self._present if key not in staying]:
            self.leave(key)
        for key in staying:
            self.join(key)

    def use(self, key: Key, amount: float) -> None:
        """It has had a turn, in which it used so much."""
        account = self._present[key]
        self._num_turns += 1
        self._set(key, _Account(account.used + amount, self._num_turns, account.joined_at))

    def copy(self) -> FairTurns[Key]:
        """Turns that can be tried out."""
        copied = FairTurns[Key](favours_newcomers=self._favours_newcomers)
        copied._present, copied._away = self._present.copy(), self._away.copy()
        copied._queue, copied._num_turns = self._queue.copy(), self._num_turns
        return copied

    def _set(self, key: Key, account: _Account) -> None:
        self._present[key] = account
        heappush(self._queue, (account, key))
        if len(self._queue) > 2 * len(self._present) + 8:  # most of them are old
            self._queue = sorted((account, key) for key, account in self._present.items())

    def _forget(self) -> None:
        """Forget who has left, where that changes nothing: it would start even."""
        least = self._present[self.first].used if self._present else math.inf
        self._away = {key: account for key, account in self._away.items() if account.used > least}


Path = tuple[str, ...]
"""From the outermost group that somebody belongs to down to itself."""


class NestedTurns:
    """Fair turns of groups, within a group of those below it, and so on down: whoever calls itself by many
    names gets no more for it."""

    def __init__(self) -> None:
        self._turns = FairTurns[str](favours_newcomers=False)
        self._below: dict[str, NestedTurns] = {}
        self._borrowed: set[str] = set()
        """Names below whose turns are those of the original still, which must not be changed."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def first(self) -> Path:
        """Who is next. There must be somebody."""
        key = self._turns.first
        return (key, *self._below[key].first) if key in self._below else (key,)

    @property
    def order(self) -> list[Path]:
        """As they would be served if each had one small turn."""
        return list(alternating(self._order_below(key) for key in self._turns.order))

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
        """Turns that can be tried out, as long as these do not change. What nobody tries is not copied."""
        copied = NestedTurns()
        copied._turns, copied._below = self._turns.copy(), self._below.copy()
        copied._borrowed = set(self._below)
        return copied

    def _order_below(self, key: str) -> list[Path]:
        return [(key, *path) for path in self._below[key].order] if key in self._below else [(key,)]

    def _own(self, key: str) -> NestedTurns:
        """Those below, of its own."""
        if key in self._borrowed:
            self._borrowed.remove(key)
            self._below[key] = self._below[key].copy()
        return self._below[key]


def alternating(queues: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each, then the second of each, ...; no more is looked at than is taken."""
    left = [iter(queue) for queue in queues]
    while left:
        still = []
        for queue in left:
            for item in islice(queue, 1):
                still.append(queue)
                yield item
        left = still


class FairQueue(Generic[T]):
    """Tickets of callers who wait for one of several places. The caller who has used least is next.

    A caller holds at most `most` places, so that the worst work of one never keeps all places from others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._turns = NestedTurns()
        self._waiting: dict[Path, list[T]] = {}
        self._held: dict[Path, int] = {}

    def __len__(self) -> int:
        """Tickets that wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def num_held(self) -> int:
        """Places that are taken."""
        return sum(self._held.values())

    def add(self, caller: Path, ticket: T) -> None:
        self._turns.join(caller)
        self._waiting.setdefault(caller, []).append(ticket)

    def remove(self, caller: Path, ticket: T) -> None:
        """Forget a waiting ticket whose caller gave up."""
        self._waiting[caller].remove(ticket)
        self._leave_if_gone(caller)

    def take(self) -> T | None:
        """Give a place to the ticket that is next; None if nobody may have one."""
        for caller in self._in_turn():
            if self._waiting.get(caller) and self._held.get(caller, 0) < self._most:
                self._held[caller] = self._held.get(caller, 0) + 1
                return self._waiting[caller].pop(0)
        return None

    def _in_turn(self) -> Iterator[Path]:
        """All callers, the next first. They are sorted only where the next one may have nothing."""
        if self._turns:
            yield self._turns.first
            yield from self._turns.order

    def give_back(self, caller: Path, used: float) -> None:
        """A place is free again, after its caller has used so much."""
        self._turns.use(caller, used)
        self._held[caller] -= 1
        self._leave_if_gone(caller)

    def _leave_if_gone(self, caller: Path) -> None:
        if not self._waiting.get(caller):
            self._waiting.pop(caller, None)
            if not self._held.get(caller):
                self._held.pop(caller, None)
                self._turns.leave(caller)
