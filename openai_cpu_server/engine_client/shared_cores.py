"""Turns of several engine processes on one machine's cores. `CpuTokenQueue` is pure, with times in seconds:
interactive work first, then turns by used time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from openai_cpu_server.contract.messages import (
    Command,
    CpuToken,
    CpuTokenReturned,
    EngineWants,
    ShortenCpuToken,
)
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.fairness import Credit, FairTurns

INTERACTIVE_TURN_S = 0.02
"""Longest turn between interactive work of several engines. With steps of 0.5 ms two engines together compute
as many tokens as one alone (docs/scheduling.md)."""
BATCH_TURN_S = 1.0
"""The same for batch work: one or two of its longest steps."""
FIRST_PRICE_S = 0.13
LONGEST_COURTESY_S = 2.0
"""Time for which due batch work lets new interactive work go first. It bounds its wait under a steady flow of
new requests."""


_NOT_WORTH_SENDING_S = 1e-3
"""Minimum change of a limit that is sent, less than any step."""


class Decision(NamedTuple):
    name: str
    command: CpuToken | ShortenCpuToken


@dataclass(eq=False)
class CpuTokenUser:
    name: str
    work: Priority | None = None
    is_newcomer: bool = False
    """True until its interactive work has had a turn."""
    used_s: dict[Priority, float] = field(default_factory=lambda: dict.fromkeys(Priority, 0.0))
    price_s: float = FIRST_PRICE_S
    """Duration of the last batch turn beside interactive work."""


class CpuTokenQueue:
    """Holder of the turn and its successor: call a method for each event, then `decide`. Batch work beside
    others' interactive work earns credit for turns of one short step."""

    def __init__(self, *, batch_floor: float) -> None:
        self._participants: dict[str, CpuTokenUser] = {}
        self._by_class = {work: FairTurns[CpuTokenUser](favours_newcomers=True) for work in Priority}
        self._holder: CpuTokenUser | None = None
        self._granted_s = 0.0
        self._until_s = math.inf
        """End of the holder's turn as last sent."""
        self._has_interrupted = False
        self._is_floor_turn = False
        """True for a batch turn while interactive work waits."""
        self._credit = Credit(batch_floor)
        self._due_since_s: float | None = None
        self._booked_s = 0.0

    # -- what happens ------------------------------------------------------------------------------------

    def join(self, name: str, now_s: float) -> None:
        assert name not in self._participants, f"there is a {name} already"
        self._book(now_s)
        self._participants[name] = CpuTokenUser(name)

    def leave(self, name: str, now_s: float) -> None:
        self._book(now_s)
        participant = self._participants.pop(name)
        if self._holder is participant:
            self._holder = None
        for turns in self._by_class.values():
            turns.leave(participant)

    def wants(self, name: str, work: Priority | None, now_s: float) -> None:
        self._book(now_s)
        self._set_work(self._participants[name], work)

    def returned(self, name: str, work: Priority | None, now_s: float) -> None:
        participant = self._participants[name]
        assert self._holder is participant, f"{name} returns a turn that it does not hold"
        self._book(now_s)
        if self._is_floor_turn:
            participant.price_s = max(now_s - self._granted_s, 1e-3)
        self._holder = None
        self._set_work(participant, work)

    # -- what follows ------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> Decision | None:
        """Return the command to send now, which counts as sent."""
        self._book(now_s)
        if self._holder is None:
            return self._grant(now_s)
        return self._recall(self._holder, now_s)

    @property
    def holder(self) -> str | None:
        return self._holder.name if self._holder is not None else None

    def used_s(self, name: str, work: Priority, now_s: float) -> float:
        participant = self._participants[name]
        is_at_it = participant is self._holder and participant.work is work
        return participant.used_s[work] + (now_s - self._booked_s if is_at_it else 0.0)

    def is_waiting(self, name: str) -> bool:
        participant = self._participants[name]
        return participant.work is not None and participant is not self._holder

    def is_awaited(self, name: str) -> bool:
        others = (p for p in self._participants.values() if p is not self._holder)
        return self.holder == name and any(p.work is not None for p in others)

    def _grant(self, now_s: float) -> Decision | None:
        chosen = self._next(now_s)
        if chosen is None or chosen.work is None:
            return None
        others_interactive = any(p is not chosen for p in self._waiting(Priority.INTERACTIVE))
        self._is_floor_turn = chosen.work is Priority.BATCH and others_interactive
        if chosen.work is Priority.BATCH:
            self._due_since_s = None
            if not self._is_floor_turn:
                self._credit.lapse()
        chosen.is_newcomer = False
        self._holder, self._granted_s, self._has_interrupted = chosen, now_s, False
        self._until_s = self._deadline_s(chosen, now_s)
        limit_ms = None if self._until_s == math.inf else 1000 * max(0.0, self._until_s - now_s)
        return Decision(chosen.name, CpuToken(limit_ms=limit_ms, beside_interactive=others_interactive))

    def _recall(self, holder: CpuTokenUser, now_s: float) -> Decision | None:
        if holder.work is None:
            return None  # it is about to give the turn back by itself
        until_s = self._deadline_s(holder, now_s)
        # A turn that batch work has saved for is short and left alone, because frequent new requests
        # would otherwise take its share.
        is_long_batch = holder.work is Priority.BATCH and not self._is_floor_turn
        must_interrupt = is_long_batch and bool(self._waiting(Priority.INTERACTIVE))
        interrupts = must_interrupt and not self._has_interrupted
        if until_s > self._until_s - _NOT_WORTH_SENDING_S and not interrupts:
            return None
        self._until_s = min(until_s, self._until_s)
        self._has_interrupted = self._has_interrupted or interrupts
        after_ms = 1000 * max(0.0, self._until_s - now_s)
        return Decision(holder.name, ShortenCpuToken(after_ms=after_ms, interrupts=interrupts))

    def _next(self, now_s: float) -> CpuTokenUser | None:
        interactive, batch = self._waiting(Priority.INTERACTIVE), self._waiting(Priority.BATCH)
        if not interactive or not batch:
            return next(iter(interactive or batch), None)
        has_newcomer = any(participant.is_newcomer for participant in interactive)
        courtesy_s = LONGEST_COURTESY_S if has_newcomer else 0.0
        is_due = self._due_since_s is not None and now_s - self._due_since_s >= courtesy_s
        return batch[0] if is_due else interactive[0]

    def _deadline_s(self, holder: CpuTokenUser, now_s: float) -> float:
        if holder.work is Priority.BATCH:
            if self._waiting(Priority.INTERACTIVE):
                return now_s
            return self._fair_until_s(holder, Priority.BATCH, BATCH_TURN_S)
        fair_s = self._fair_until_s(holder, Priority.INTERACTIVE, INTERACTIVE_TURN_S)
        price_s = self._price_s()
        return fair_s if price_s is None else min(fair_s, now_s + self._credit.due_in(price_s))

    def _fair_until_s(self, holder: CpuTokenUser, work: Priority, least_s: float) -> float:
        waiting = self._waiting(work)
        if not waiting:
            return math.inf
        return max(self._granted_s + least_s, self._booked_s + self._by_class[work].lead(waiting[0], holder))

    def _price_s(self) -> float | None:
        waiting = self._waiting(Priority.BATCH)
        return waiting[0].price_s if waiting else None

    def _waiting(self, work: Priority) -> list[CpuTokenUser]:
        return [participant for participant in self._by_class[work].order if participant is not self._holder]

    # -- books -------------------------------------------------------------------------------------------

    def _set_work(self, participant: CpuTokenUser, work: Priority | None) -> None:
        if work is participant.work:
            return
        if participant.work is not None:
            self._by_class[participant.work].leave(participant)
        if work is not None:
            self._by_class[work].join(participant)
        participant.work = work
        participant.is_newcomer = work is Priority.INTERACTIVE and participant is not self._holder

    def _book(self, now_s: float) -> None:
        seconds, self._booked_s = now_s - self._booked_s, now_s
        holder = self._holder
        work = holder.work if holder is not None else None
        if holder is not None and work is not None:
            holder.used_s[work] += seconds
            self._by_class[work].use(holder, seconds)
        self._book_credit(seconds, work, now_s)

    def _book_credit(self, seconds: float, work: Priority | None, now_s: float) -> None:
        if not all(self._by_class.values()):
            return
        self._credit.account(seconds, own=seconds if work is Priority.BATCH else 0.0)
        price_s = self._price_s()
        if price_s is not None and self._credit.pays_for(price_s) and self._due_since_s is None:
            self._due_since_s = now_s


Send = Callable[[Command], None]


class SharedCores:
    def __init__(self, *, batch_floor: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.turns = CpuTokenQueue(batch_floor=batch_floor)
        """Partners call `act` after each change."""
        self.clock = clock
        self._sends: dict[str, Send] = {}
        self._numbers = count(1)

    def join(self, name: str) -> CoresPartner:
        """Engines may share a name, as in a reload."""
        return CoresPartner(self, f"{name}#{next(self._numbers)}")

    @property
    def holder(self) -> str | None:
        return self.turns.holder

    # -- for partners ------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._sends

    def enter(self, name: str, send: Send) -> None:
        self._sends[name] = send
        self.turns.join(name, self.clock())

    def leave(self, name: str) -> None:
        if self._sends.pop(name, None) is not None:
            self.turns.leave(name, self.clock())
            self.act()

    def act(self) -> None:
        decision = self.turns.decide(self.clock())
        if decision is not None:
            self._sends[decision.name](decision.command)


class CoresPartner:
    """One engine, through its successive processes."""

    def __init__(self, cores: SharedCores, name: str) -> None:
        self.name = name
        self._cores = cores
        self._used_before_s = dict.fromkeys(Priority, 0.0)
        self._loads_as: Priority | None = None

    def enter(self, send: Send) -> None:
        self._cores.enter(self.name, send)

    def leave(self) -> None:
        """Remove a process. May be called twice."""
        self._used_before_s = {work: self.used_s(work) for work in Priority}
        self._loads_as = None
        self._cores.leave(self.name)

    def handle(self, event: EngineWants | CpuTokenReturned, *, loads_for: Priority | None) -> None:
        """`loads_for`: best priority that waits for the load, or None (batch work)."""
        wants = event.wants if isinstance(event, CpuTokenReturned) else event
        work = wants.work
        if wants.is_loading and work is not None:
            work = Priority.BATCH if loads_for is None else loads_for
        self._loads_as = work if wants.is_loading else None
        turns = self._cores.turns
        apply = turns.returned if isinstance(event, CpuTokenReturned) else turns.wants
        apply(self.name, work, self._cores.clock())
        self._cores.act()

    def request_came(self, priority: Priority) -> None:
        """Make the load interactive work. A busy machine may have other work for seconds between two
        pieces."""
        if self._loads_as is Priority.BATCH and priority is Priority.INTERACTIVE:
            self._loads_as = priority
            self._cores.turns.wants(self.name, priority, self._cores.clock())
            self._cores.act()

    @property
    def is_waiting(self) -> bool:
        return self.name in self._cores and self._cores.turns.is_waiting(self.name)

    @property
    def is_awaited(self) -> bool:
        return self.name in self._cores and self._cores.turns.is_awaited(self.name)

    def used_s(self, work: Priority) -> float:
        """Time of turns for this priority. Never falls."""
        cores = self._cores
        now_used_s = cores.turns.used_s(self.name, work, cores.clock()) if self.name in cores else 0.0
        return self._used_before_s[work] + now_used_s
