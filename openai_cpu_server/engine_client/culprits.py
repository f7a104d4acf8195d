"""Who may have killed the engine: suspects are tried, and culprits counted. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.deaths import DeathKind
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import CulpritsLimited

LIMIT = 2
_WINDOW_S = 600.0


class CulpritLedger:
    """Counts the API calls that engines died of, by the account that answers for them. A server has one of
    these, for all of its engines.

    An account with `LIMIT` of them within ten minutes is sent away. Nobody answers for the account "".
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._calls: dict[str, dict[str, float]] = {}
        """By account, when each call was found out."""

    def book(self, account: str, call: str) -> None:
        """An engine has died of this call; of all its sequences the first counts."""
        self._forget()
        if account:
            self._calls.setdefault(account, {}).setdefault(call, self._clock())

    def check(self, account: str) -> None:
        """Raises CulpritsLimited."""
        last = sorted(self._recent(account))[-LIMIT:]
        if len(last) == LIMIT:
            raise CulpritsLimited(LIMIT, retry_after_s=last[0] + _WINDOW_S - self._clock())

    def _recent(self, account: str) -> list[float]:
        return [when for when in self._calls.get(account, {}).values() if self._clock() - when < _WINDOW_S]

    def _forget(self) -> None:
        """What is over needs no memory."""
        self._calls = {account: calls for account, calls in self._calls.items() if self._recent(account)}


class AbsentSuspects:
    """Once all other suspects are cleared, those who have left explain the deaths; where all of them are of
    one account, it is the culprit's."""

    def __init__(self, culprits: CulpritLedger) -> None:
        self._culprits = culprits
        self._absent: dict[str, str] = {}
        """The accounts of those who have left, by their calls."""
        self._is_concluded = False

    def left(self, some: Iterable[AcceptedRequest]) -> None:
        """These leave by themselves."""
        self._absent |= {live.call: live.request.account for live in some if live.suspicion}

    def conclude(self, present: Iterable[AcceptedRequest]) -> None:
        """Nothing, as long as some of those who are left are suspected."""
        if not self._absent or any(live.suspicion for live in present):
            return
        if len(set(self._absent.values())) == 1:
            call, account = next(iter(self._absent.items()))
            self._culprits.book(account, call)
        self.forget()
        self._is_concluded = True

    def forget(self) -> None:
        """The culprit is known."""
        self._absent = {}

    def take_conclusion(self) -> bool:
        """Whether the deaths so far are explained; told once."""
        was_concluded, self._is_concluded = self._is_concluded, False
        return was_concluded


_POINTS = {DeathKind.FAULT: 3, DeathKind.HANG: 3, DeathKind.MEMORY: 2, DeathKind.KILL: 2}
"""The suspicion that a death brings upon each of the accused. It adds up for one that was alone."""
_GUILTY = 6
"""Reached by two faults in a row without a token between, or by three kills, for these mostly come from
outside. All but the first must have come while the request was alone."""


class SearchVerdict(NamedTuple):
    """What a death has shown."""

    guilty: list[AcceptedRequest]
    num_suspects: int
    is_closer: bool
    """The most suspect are fewer than before: the search for the culprit needed this death."""


class CulpritSearch:
    """The suspects after a death, in groups; one half of the first group at a time is on trial.

    Those on trial are computed while the other suspects wait outside the engine. When each of them has made
    progress, the next half is tried; if the engine dies again, those on trial are the most suspect, and are
    halved. So it takes about log2(n) deaths to find a culprit, and about as many rounds to clear everybody.
    Interactive requests are tried first, then those that had got nowhere in the dead engine, then the newest.

    Requests that are not suspected wait until one half has proved itself, unless they have a better priority
    than those on trial. If the engine dies with them beside a trial, they are suspects after those on trial.

    Nobody fails for another: a request fails only if the engine dies while it computes this one alone, and
    had died of it before. The last suspect of a search is therefore tried entirely alone, and so is one that
    was being handled outside of steps: that is the likeliest culprit.

    A kill from outside accuses only who has made no progress in that engine: no kill -9 at a random moment
    hurts anybody, but a request that brings the out-of-memory killer every time is found.
    """

    def __init__(self) -> None:
        self._groups: list[list[AcceptedRequest]] = []
        """They wait for their trial. All of a group have the same priority."""
        self._on_trial: list[AcceptedRequest] = []
        self._alone: AcceptedRequest | None = None
        """Nobody else is computed until this one is cleared."""
        self._has_proof = False
        """Since the last death a trial has ended well."""
        self._num_foremost = 0
        """The most suspect of the last death, counted."""

    def admitted(self, outside: Iterable[AcceptedRequest]) -> list[AcceptedRequest]:
        """Who of those outside the engine may be computed now."""
        if not _suspected(self._on_trial):
            self._begin()
        return [live for live in outside if self._admits(live)]

    def advanced(self, live: AcceptedRequest) -> None:
        """It has gained tokens, or ended."""
        was_suspected, live.suspicion, live.has_advanced = live.suspicion > 0, 0, True
        if was_suspected and not _suspected(self._on_trial):
            self._has_proof = True

    def died(
        self, kind: DeathKind, present: Sequence[AcceptedRequest], handled: AcceptedRequest | None
    ) -> SearchVerdict:
        """`present`: who was being computed or handled, the oldest first; `handled`: the latter."""
        accused = [live for live in present if not (kind.is_from_outside and live.has_advanced)]
        again = [live for live in _suspected(self._on_trial) if live in accused]
        for live in accused:
            live.suspicion = _POINTS[kind] + (live.suspicion if len(present) == 1 else 0)
        if len(present) == 1 and accused and accused[0].suspicion >= _GUILTY:
            self._acquit()
            return SearchVerdict(accused, num_suspects=1, is_closer=False)
        self._regroup(accused, again)
        if accused:  # else it died while it loaded, say
            self._alone = handled if handled in accused else again[0] if len(again) == 1 else None
        return SearchVerdict([], len(accused), self._is_closer(accused, again))

    def _acquit(self) -> None:
        """The culprit explains all."""
        for live in [*self._on_trial, *(live for group in self._groups for live in group)]:
            live.suspicion = 0
        self._groups, self._on_trial, self._alone = [], [], None

    def _regroup(self, accused: list[AcceptedRequest], again: list[AcceptedRequest]) -> None:
        """`again`: those of the accused who were on trial."""

        def order(live: AcceptedRequest) -> tuple[Priority, bool, bool]:
            return live.request.priority, live.has_advanced, live not in again

        newest_first = reversed(accused)
        groups = [list(group) for _, group in groupby(sorted(newest_first, key=order), order)]
        waiting = [[one for one in group if one not in accused] for group in [self._on_trial, *self._groups]]
        self._groups = sorted(filter(None, [*groups, *waiting]), key=lambda group: group[0].request.priority)
        self._on_trial, self._has_proof = [], False

    def _is_closer(self, accused: list[AcceptedRequest], again: list[AcceptedRequest]) -> bool:
        if not accused:
            return False
        before, self._num_foremost = self._num_foremost, len(again or accused)
        return 0 < len(again) < before

    @property
    def _is_one_alone(self) -> bool:
        return self._alone is not None and self._alone.suspicion > 0

    def _begin(self) -> None:
        """The next trial, if there are suspects left."""
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
    """Which of the live requests are not in the engine, and who of them may go in."""

    def __init__(self, live: AcceptedRequests) -> None:
        self._live = live
        self._held: dict[str, AcceptedRequest] = {}
        """In the order of their arrival."""
        self._computing: frozenset[str] = frozenset()
        self._handled: str | None = None
        """Who is handled outside of steps."""
        self._trials = CulpritSearch()

    def add(self, live: AcceptedRequest) -> None:
        """It waits here until it is `due`."""
        self._held[live.request.id] = live

    def remove(self, request_id: str) -> None:
        """It lives no more, or was never here."""
        self._held.pop(request_id, None)

    def has_sent(self, live: AcceptedRequest) -> bool:
        """The engine has it."""
        return live.request.id not in self._held

    def due(self) -> list[AcceptedRequest]:
        """Who is to be sent to the engine now. They count as sent."""
        due = self._trials.admitted(self._held.values()) if self._held else []
        for live in due:
            del self._held[live.request.id]
        return due

    @property
    def is_everybody(self) -> bool:
        """The engine has no request."""
        return len(self._held) >= len(self._live)

    def computing(self, ids: tuple[str, ...]) -> None:
        """These are in the step that now runs."""
        self._computing = frozenset(ids)

    def handling(self, request_id: str | None) -> None:
        """This one is being handled outside of steps; None: nobody is any more."""
        self._handled = request_id

    def advanced(self, live: AcceptedRequest) -> None:
        """It has gained tokens or vectors, or has ended."""
        self._trials.advanced(live)

    def crashed(self, kind: DeathKind) -> SearchVerdict:
        """The engine died; all are outside of it now."""
        verdict = self._trials.died(kind, self._present(), self._live.get(self._handled or ""))
        for live in self._live:
            live.wait()
            live.has_advanced = False
        self._held = {live.request.id: live for live in self._live}
        self._computing, self._handled = frozenset(), None
        return verdict

    def _present(self) -> list[AcceptedRequest]:
        """Who was in the step or was being handled; if nobody was, all that the engine had."""
        at_work = [live for live in self._live if live.request.id in {*self._computing, self._handled}]
        return at_work or [live for live in self._live if live.request.id not in self._held]
