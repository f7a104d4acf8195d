"""Who may have killed the engine, and who of them is computed next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.death import DeathKind
from openai_cpu_server.dispatch.requests.live import Live

_POINTS = {DeathKind.FAULT: 3, DeathKind.HANG: 3, DeathKind.MEMORY: 2, DeathKind.KILL: 2}
"""The suspicion that a death brings upon each of the accused. It adds up for one that was alone."""
_GUILTY = 6
"""Reached by two faults in a row without a token between, or by three kills, for these mostly come from
outside. All but the first must have come while the request was alone."""


class Verdict(NamedTuple):
    """What a death has shown."""

    guilty: list[Live]
    num_suspects: int
    is_closer: bool
    """The most suspect are fewer than before: the search for the culprit needed this death."""


class Trials:
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
        self._groups: list[list[Live]] = []
        """They wait for their trial. All of a group have the same priority."""
        self._on_trial: list[Live] = []
        self._alone: Live | None = None
        """Nobody else is computed until this one is cleared."""
        self._has_proof = False
        """Since the last death a trial has ended well."""
        self._num_foremost = 0
        """The most suspect of the last death, counted."""

    def admitted(self, outside: Iterable[Live]) -> list[Live]:
        """Who of those outside the engine may be computed now."""
        if not _suspected(self._on_trial):
            self._begin()
        return [live for live in outside if self._admits(live)]

    def advanced(self, live: Live) -> None:
        """It has gained tokens, or ended."""
        was_suspected, live.suspicion, live.has_advanced = live.suspicion > 0, 0, True
        if was_suspected and not _suspected(self._on_trial):
            self._has_proof = True

    def died(self, kind: DeathKind, present: Sequence[Live], handled: Live | None) -> Verdict:
        """`present`: who was being computed or handled, the oldest first; `handled`: the latter."""
        accused = [live for live in present if not (kind.is_from_outside and live.has_advanced)]
        again = [live for live in _suspected(self._on_trial) if live in accused]
        for live in accused:
            live.suspicion = _POINTS[kind] + (live.suspicion if len(present) == 1 else 0)
        if len(present) == 1 and accused and accused[0].suspicion >= _GUILTY:
            self._acquit()
            return Verdict(accused, num_suspects=1, is_closer=False)
        self._regroup(accused, again)
        if accused:  # else it died while it loaded, say
            self._alone = handled if handled in accused else again[0] if len(again) == 1 else None
        return Verdict([], len(accused), self._is_closer(accused, again))

    def _acquit(self) -> None:
        """The culprit explains all."""
        for live in [*self._on_trial, *(live for group in self._groups for live in group)]:
            live.suspicion = 0
        self._groups, self._on_trial, self._alone = [], [], None

    def _regroup(self, accused: list[Live], again: list[Live]) -> None:
        """`again`: those of the accused who were on trial."""

        def order(live: Live) -> tuple[Priority, bool, bool]:
            return live.request.priority, live.has_advanced, live not in again

        newest_first = reversed(accused)
        groups = [list(group) for _, group in groupby(sorted(newest_first, key=order), order)]
        waiting = [[one for one in group if one not in accused] for group in [self._on_trial, *self._groups]]
        self._groups = sorted(filter(None, [*groups, *waiting]), key=lambda group: group[0].request.priority)
        self._on_trial, self._has_proof = [], False

    def _is_closer(self, accused: list[Live], again: list[Live]) -> bool:
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

    def _admits(self, live: Live) -> bool:
        if live.suspicion:
            return live in self._on_trial
        if self._is_one_alone:
            return False
        is_free = self._has_proof or not self._on_trial
        return is_free or live.request.priority < self._on_trial[0].request.priority


def _suspected(some: Iterable[Live]) -> list[Live]:
    return [live for live in some if live.suspicion]
