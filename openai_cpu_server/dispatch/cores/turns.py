"""Decides which of several engines computes: one at a time, for they share a machine's cores.

No I/O and no clock: time is an argument, in seconds. The rules are those within one model. Interactive work
goes first, batch work keeps a share of the time, and within a class engines take turns by the time that they
have used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority

INTERACTIVE_TURN_S = 0.02
"""A turn between interactive work of several engines ends after the step in which this time passes.

Engines of short steps do not pay a hand-over for each step, and nobody reads so fast that the pause is seen.
Measured with steps of 0.5 ms: two engines together compute as many tokens as one alone (docs/scheduling.md).
"""
BATCH_TURN_S = 1.0
"""The same between batch work: one or two of its longest steps."""
FIRST_PRICE_S = 0.13
"""What a turn of batch work beside interactive work is expected to take before one was seen: a little more
than a step may, which is `--preempt-threshold-ms`."""
LONGEST_COURTESY_S = 2.0
"""So long batch work whose turn is due lets interactive newcomers go first.

It bounds its wait where newcomers come without end; one of these then waits for a short step.
"""


_NOT_WORTH_TELLING_S = 1e-3
"""By so much a limit must change to be told again; it is less than any step."""


class Grant(NamedTuple):
    """The turn is this participant's."""

    name: str
    limit_s: float | None
    """How long it may keep it, counted from now: to the end of the step in which this time passes.

    None: there is no limit yet.
    """
    beside_interactive: bool
    """Interactive work of another waits meanwhile."""


class Recalled(NamedTuple):
    """The holder may keep the turn for a shorter time than it was told."""

    name: str
    after_s: float
    """Counted from now."""
    interrupts: bool
    """A step of batch work alone that has long left is to be thrown away."""


Decision = Grant | Recalled


class Participant:
    """One engine that shares the cores."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: Priority | None = None
        """What it wants to compute, or computes."""
        self.since_s = 0.0
        """Since when it waits, or waited."""
        self.is_newcomer = False
        """Its interactive work has had no turn yet since there was none."""
        self.used_s = dict.fromkeys(Priority, 0.0)
        """The time that it has held the turn for work of each class."""
        self.tag_s = dict.fromkeys(Priority, 0.0)
        """The same, lifted to that of the others when it comes back: who was away has saved up nothing."""
        self.price_s = FIRST_PRICE_S
        """What a turn of batch work beside interactive work has taken, the last time."""


class Turns:
    """Who holds the turn, and who is next. Tell it what happens, and do what it `decides`.

    Batch work earns credit while it contends with interactive work of another engine: `batch_floor` times
    the time that passes. When that pays for a turn, which is one short step, the turn is due. It lets
    newcomers go first, for a while. The credit is never more than that, and batch work that gets a turn
    otherwise has none left.
    """

    def __init__(self, *, batch_floor: float) -> None:
        """`batch_floor`: a share of the time, 0 to 1; 0: none beside interactive work of others."""
        self._batch_floor = batch_floor
        self._participants: dict[str, Participant] = {}
        self._holder: Participant | None = None
        self._granted_s = 0.0
        """When the holder got the turn."""
        self._until_s = math.inf
        """How long the holder may keep it, as it was told."""
        self._has_interrupted = False
        """The holder was told to throw a step away."""
        self._is_floor_turn = False
        """The holder computes batch work though interactive work waits."""
        self._virtual_s = dict.fromkeys(Priority, 0.0)
        """By class, the least tag of those who had work of it when it was last computed."""
        self._credit_s = 0.0
        self._due_since_s: float | None = None
        self._booked_s = 0.0

    # -- what happens ------------------------------------------------------------------------------------

    def join(self, name: str, now_s: float) -> None:
        """An engine has started. It wants nothing yet."""
        assert name not in self._participants, f"there is a {name} already"
        self._book(now_s)
        self._participants[name] = Participant(name)

    def leave(self, name: str, now_s: float) -> None:
        """An engine has died or ended: it holds nothing any more."""
        self._book(now_s)
        if self._holder is self._participants[name]:
            self._holder = None
        del self._participants[name]

    def wants(self, name: str, work: Priority | None, now_s: float) -> None:
        """What the participant would compute, or computes, from now on; None: nothing."""
        self._book(now_s)
        self._set_work(self._participants[name], work, now_s)

    def given_back(self, name: str, work: Priority | None, now_s: float) -> None:
        """The holder has given the turn back, and wants this next."""
        participant = self._participants[name]
        assert self._holder is participant, f"{name} gives back what it does not hold"
        self._book(now_s)
        if self._is_floor_turn:
            participant.price_s = max(now_s - self._granted_s, 1e-3)
        self._holder = None
        participant.since_s = now_s
        self._set_work(participant, work, now_s)

    # -- what follows ------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Decision | None:
        """What the carrier must do now; it counts as done. None: nothing."""
        self._book(now_s)
        if self._holder is None:
            return self._grant(now_s)
        return self._recall(self._holder, now_s)

    @property
    def holder(self) -> str | None:
        return self._holder.name if self._holder is not None else None

    def used_s(self, name: str, work: Priority, now_s: float) -> float:
        """The time that the participant has held the turn for work of this class."""
        participant = self._participants[name]
        is_at_it = participant is self._holder and participant.work is work
        return participant.used_s[work] + (now_s - self._booked_s if is_at_it else 0.0)

    def is_waiting(self, name: str) -> bool:
        """Whether it wants the turn, and another has it."""
        participant = self._participants[name]
        return participant.work is not None and participant is not self._holder

    def is_awaited(self, name: str) -> bool:
        """Whether it holds the turn, and another wants it."""
        others = (p for p in self._participants.values() if p is not self._holder)
        return self.holder == name and any(p.work is not None for p in others)

    def _grant(self, now_s: float) -> Grant | None:
        chosen = self._next(now_s)
        if chosen is None or chosen.work is None:
            return None
        others_interactive = any(p is not chosen for p in self._waiting(Priority.INTERACTIVE))
        self._is_floor_turn = chosen.work is Priority.BATCH and others_interactive
        if chosen.work is Priority.BATCH:
            self._due_since_s = None
            self._credit_s = self._credit_s if self._is_floor_turn else 0.0
        chosen.is_newcomer = False
        self._holder, self._granted_s, self._has_interrupted = chosen, now_s, False
        self._until_s = self._deadline_s(chosen, now_s)
        return Grant(chosen.name, self._limit_s(now_s), beside_interactive=others_interactive)

    def _limit_s(self, now_s: float) -> float | None:
        return None if self._until_s == math.inf else max(0.0, self._until_s - now_s)

    def _recall(self, holder: Participant, now_s: float) -> Recalled | None:
        """Tell the holder if it must end earlier than it knows."""
        if holder.work is None:
            return None  # it is about to give the turn back by itself
        until_s = self._deadline_s(holder, now_s)
        interrupts = self._must_interrupt(holder) and not self._has_interrupted
        if until_s > self._until_s - _NOT_WORTH_TELLING_S and not interrupts:
            return None
        self._until_s = min(until_s, self._until_s)
        self._has_interrupted = self._has_interrupted or interrupts
        return Recalled(holder.name, max(0.0, self._until_s - now_s), interrupts)

    def _must_interrupt(self, holder: Participant) -> bool:
        """A turn that batch work has saved for is short and is left alone: else newcomers that come often
        would take its share."""
        is_batch = holder.work is Priority.BATCH and not self._is_floor_turn
        return is_batch and any(self._waiting(Priority.INTERACTIVE))

    def _next(self, now_s: float) -> Participant | None:
        interactive = list(self._waiting(Priority.INTERACTIVE))
        batch = list(self._waiting(Priority.BATCH))
        if not interactive or not batch:
            return self._first(interactive) or self._first(batch)
        first = self._first(batch)
        return first if self._is_batchs_turn(interactive, now_s) else self._first(interactive)

    def _is_batchs_turn(self, interactive: list[Participant], now_s: float) -> bool:
        """Whether batch work computes though interactive work waits."""
        if self._due_since_s is None:
            return False
        has_newcomer = any(p.is_newcomer for p in interactive)
        return not has_newcomer or now_s - self._due_since_s >= LONGEST_COURTESY_S

    def _first(self, waiting: list[Participant]) -> Participant | None:
        """Who has used least; of equals, newcomers, and who waits longest."""
        return min(waiting, key=lambda p: (_tag_s(p), not p.is_newcomer, p.since_s), default=None)

    def _deadline_s(self, holder: Participant, now_s: float) -> float:
        """How long the holder may keep the turn, as things stand; infinity: as long as it has work."""
        if holder.work is Priority.BATCH:
            if any(self._waiting(Priority.INTERACTIVE)):
                return now_s
            return self._fair_until_s(holder, Priority.BATCH, BATCH_TURN_S)
        fair_s = self._fair_until_s(holder, Priority.INTERACTIVE, INTERACTIVE_TURN_S)
        return min(fair_s, self._due_at_s(now_s))

    def _fair_until_s(self, holder: Participant, work: Priority, least_s: float) -> float:
        """When another of its class is next, if there is one that waits."""
        other = self._first(list(self._waiting(work)))
        if other is None:
            return math.inf
        return max(self._granted_s + least_s, self._booked_s + other.tag_s[work] - holder.tag_s[work])

    def _due_at_s(self, now_s: float) -> float:
        """When batch work that waits has saved enough for a turn beside interactive work."""
        price_s = self._price_s()
        if price_s is None or not self._batch_floor:
            return math.inf
        return now_s + max(0.0, price_s - self._credit_s) / self._batch_floor

    def _price_s(self) -> float | None:
        """What the next turn of batch work will take; None: none is wanted."""
        first = self._first(list(self._waiting(Priority.BATCH)))
        return None if first is None else first.price_s

    def _waiting(self, work: Priority) -> Iterator[Participant]:
        return (p for p in self._participants.values() if p.work is work and p is not self._holder)

    # -- books -------------------------------------------------------------------------------------------

    def _set_work(self, participant: Participant, work: Priority | None, now_s: float) -> None:
        if work is participant.work:
            return
        if participant.work is None:
            participant.since_s = now_s
        participant.work = work
        participant.is_newcomer = work is Priority.INTERACTIVE and participant is not self._holder
        if work is not None:
            participant.tag_s[work] = max(participant.tag_s[work], self._virtual_s[work])

    def _book(self, now_s: float) -> None:
        """Book the time since the last booking, in which nothing has changed."""
        seconds, self._booked_s = now_s - self._booked_s, now_s
        holder = self._holder
        work = holder.work if holder is not None else None
        if holder is not None and work is not None:
            holder.used_s[work] += seconds
            holder.tag_s[work] += seconds
            least_s = min(p.tag_s[work] for p in self._participants.values() if p.work is work)
            self._virtual_s[work] = max(self._virtual_s[work], least_s)
        self._book_credit(seconds, work, now_s)

    def _book_credit(self, seconds: float, work: Priority | None, now_s: float) -> None:
        wanted = {p.work for p in self._participants.values()}
        if not {Priority.INTERACTIVE, Priority.BATCH} <= wanted:
            return
        spent_s = seconds if work is Priority.BATCH else 0.0
        self._credit_s = max(0.0, self._credit_s + self._batch_floor * seconds - spent_s)
        price_s = self._price_s()
        if price_s is not None and self._batch_floor and self._credit_s >= price_s - 1e-6:
            self._credit_s = price_s
            if self._due_since_s is None:
                self._due_since_s = now_s


def _tag_s(participant: Participant) -> float:
    assert participant.work is not None
    return participant.tag_s[participant.work]
