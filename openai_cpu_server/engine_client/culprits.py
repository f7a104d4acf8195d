"""Search for requests that crash the engine. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.deaths import DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import CulpritsLimited

LIMIT = 2
_WINDOW_S = 600.0


class CulpritLedger:
    """API calls that crashed engines, by account, for all engines. An account with `LIMIT` within ten minutes
    is rejected, but never the account ""."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[str, dict[str, float]] = {}

    def book(self, account: str, call: str) -> None:
        """Count only the first of a call's sequences."""
        self._calls = {one: calls for one, calls in self._calls.items() if self._recent(one)}
        if account:
            self._calls.setdefault(account, {}).setdefault(call, self._clock())

    def check(self, account: str) -> None:
        """Reject an account beyond its limit. Raises CulpritsLimited."""
        last = sorted(self._recent(account))[-LIMIT:]
        if len(last) == LIMIT:
            raise CulpritsLimited(LIMIT, retry_after_s=last[0] + _WINDOW_S - self._clock())

    def _recent(self, account: str) -> list[float]:
        return [when for when in self._calls.get(account, {}).values() if self._clock() - when < _WINDOW_S]


class AbsentSuspects:
    """Suspects that have left. Once all others are cleared they explain the deaths; if all belong to one
    account, it is to blame."""

    def __init__(self, culprits: CulpritLedger) -> None:
        self._culprits = culprits
        self._absent: dict[str, str] = {}
        self._is_concluded = False

    def left(self, some: Iterable[AcceptedRequest]) -> None:
        self._absent |= {live.call: live.request.account for live in some if live.suspicion}

    def conclude(self, present: Iterable[AcceptedRequest]) -> None:
        if not self._absent or any(live.suspicion for live in present):
            return
        if len(set(self._absent.values())) == 1:
            call, account = next(iter(self._absent.items()))
            self._culprits.book(account, call)
        self.forget()
        self._is_concluded = True

    def forget(self) -> None:
        self._absent = {}

    def take_conclusion(self) -> bool:
        was_concluded, self._is_concluded = self._is_concluded, False
        return was_concluded


_POINTS = {DeathKind.FAULT: 3, DeathKind.HANG: 3, DeathKind.MEMORY: 2, DeathKind.KILL: 2}
"""Suspicion that a death brings upon each accused request, accumulated if it was alone."""
_GUILTY = 6
"""Two faults in a row without a token between them, or three kills, all but the first while alone."""


class SearchVerdict(NamedTuple):
    guilty: list[AcceptedRequest]
    num_suspects: int
    is_closer: bool
    """True if fewer suspects are left after this death."""


@dataclass(eq=False)
class CulpritSearch:
    """Search by bisection: one half of the first group is on trial until each request has progressed, while
    the other suspects wait. A request fails only if the engine dies twice with it, the second time alone."""

    _groups: list[list[AcceptedRequest]] = field(default_factory=list)
    """Waiting suspects, by priority."""
    _on_trial: list[AcceptedRequest] = field(default_factory=list)
    _alone: AcceptedRequest | None = None
    _has_proof: bool = False
    _num_foremost: int = 0

    def admitted(self, outside: Iterable[AcceptedRequest]) -> list[AcceptedRequest]:
        if not _suspected(self._on_trial):
            self._begin()
        return [live for live in outside if self._admits(live)]

    def advanced(self, live: AcceptedRequest) -> None:
        was_suspected, live.suspicion, live.has_advanced = live.suspicion > 0, 0, True
        if was_suspected and not _suspected(self._on_trial):
            self._has_proof = True

    def died(
        self, kind: DeathKind, present: Sequence[AcceptedRequest], handled: AcceptedRequest | None
    ) -> SearchVerdict:
        """`present`: computed or handled requests, the oldest first."""
        # A kill -9 at a random moment harms no request; one that each time brings the memory killer is found.
        accused = [live for live in present if not (kind.is_from_outside and live.has_advanced)]
        again = [live for live in _suspected(self._on_trial) if live in accused]
        for live in accused:
            live.suspicion = _POINTS[kind] + (live.suspicion if len(present) == 1 else 0)
        if len(present) == 1 and accused and accused[0].suspicion >= _GUILTY:
            for live in [*self._on_trial, *(live for group in self._groups for live in group)]:
                live.suspicion = 0
            self._groups, self._on_trial, self._alone = [], [], None
            return SearchVerdict(accused, num_suspects=1, is_closer=False)
        self._regroup(accused, again)
        is_closer = False
        if accused:  # else it died while it loaded, say
            self._alone = handled if handled in accused else again[0] if len(again) == 1 else None
            is_closer = 0 < len(again) < self._num_foremost
            self._num_foremost = len(again or accused)
        return SearchVerdict([], len(accused), is_closer)

    def _regroup(self, accused: list[AcceptedRequest], again: list[AcceptedRequest]) -> None:
        def order(live: AcceptedRequest) -> tuple[Priority, bool, bool]:
            return live.request.priority, live.has_advanced, live not in again

        newest_first = reversed(accused)
        groups = [list(group) for _, group in groupby(sorted(newest_first, key=order), order)]
        waiting = [[one for one in group if one not in accused] for group in [self._on_trial, *self._groups]]
        self._groups = sorted(filter(None, [*groups, *waiting]), key=lambda group: group[0].request.priority)
        self._on_trial, self._has_proof = [], False

    @property
    def _is_one_alone(self) -> bool:
        return self._alone is not None and self._alone.suspicion > 0

    def _begin(self) -> None:
        if self._is_one_alone and self._alone is not None:
            self._on_trial = [self._alone]
            return
        first, *rest = [group for waiting in self._groups if (group := _suspected(waiting))] or [[]]
        half = (len(first) + 1) // 2
        self._on_trial, self._groups = first[:half], [first[half:], *rest]

    def _admits(self, live: AcceptedRequest) -> bool:
        if live.suspicion:
            return live in self._on_trial
        if self._is_one_alone:
            return False
        is_free = self._has_proof or not self._on_trial
        return is_free or live.request.priority < self._on_trial[0].request.priority


def _suspected(some: Iterable[AcceptedRequest]) -> list[AcceptedRequest]:
    return [live for live in some if live.suspicion]


class OutsideRequests:
    """Live requests outside the engine."""

    def __init__(self, live: AcceptedRequests) -> None:
        self._live = live
        self._held: dict[str, AcceptedRequest] = {}
        self._computing: frozenset[str] = frozenset()
        self._handled: str | None = None
        self._trials = CulpritSearch()

    def add(self, live: AcceptedRequest) -> None:
        self._held[live.request.id] = live

    def remove(self, request_id: str) -> None:
        self._held.pop(request_id, None)

    def has_sent(self, live: AcceptedRequest) -> bool:
        return live.request.id not in self._held

    def due(self) -> list[AcceptedRequest]:
        due = self._trials.admitted(self._held.values()) if self._held else []
        for live in due:
            del self._held[live.request.id]
        return due

    @property
    def holds_all(self) -> bool:
        return len(self._held) >= len(self._live)

    def computing(self, ids: tuple[str, ...]) -> None:
        self._computing = frozenset(ids)

    def handling(self, request_id: str | None) -> None:
        self._handled = request_id

    def advanced(self, live: AcceptedRequest) -> None:
        self._trials.advanced(live)

    def crashed(self, kind: DeathKind) -> SearchVerdict:
        handled = self._live.get(self._handled or "")
        # Without a step and without a request that is handled, all that the engine had are suspects.
        at_work = [live for live in self._live if live.request.id in {*self._computing, self._handled}]
        present = at_work or [live for live in self._live if live.request.id not in self._held]
        verdict = self._trials.died(kind, present, handled)
        for live in self._live:
            live.wait()
            live.has_advanced = False
        self._held = {live.request.id: live for live in self._live}
        self._computing, self._handled = frozenset(), None
        return verdict
