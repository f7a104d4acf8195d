"""All live requests: who runs, who waits where, and what becomes of them when the engine process dies.

Pure bookkeeping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import Place, TokenEvent
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.death import DeathKind
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.dispatch.live import Live

_SUSPICION = {DeathKind.FAULT: 3, DeathKind.HANG: 3, DeathKind.MEMORY: 2, DeathKind.KILL: 2}
"""What a death makes of each request in the step, and adds to one that was alone in it."""
_GUILTY = 6
"""Two faults in a row without a token between, or three kills, which mostly come from outside; all but the
first while it was alone."""


class LiveRequests:
    """All live requests, and which of them wait outside the engine because it may die of one.

    After a crash, those that were being computed are on trial: each goes back alone, and everybody else
    when the last has made progress. A request fails only if it is the only one in the step in which the
    engine dies again: so none is ever sentenced for another. Those that had not got anywhere in the dead
    engine are tried first, the newest of them foremost, for it is mostly them.

    A kill from outside accuses only who has made no progress in that engine: no kill -9 at a random moment
    hurts anybody, but a request that brings the out-of-memory killer every time is found.
    """

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}
        self._computing: frozenset[str] = frozenset()
        self._handled: str | None = None
        """Who is handled outside of steps."""
        self._held: dict[str, Live] = {}
        """Not in the engine, in the order of their arrival."""
        self._suspects: list[str] = []
        """Who is tried after the one on trial."""
        self._on_trial: str | None = None

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: Live) -> None:
        """It is held until it is `due`."""
        self._live[live.request.id] = self._held[live.request.id] = live

    def get(self, request_id: str) -> Live | None:
        return self._live.get(request_id)

    def call_of(self, name: str) -> list[Live]:
        """All of the API call that has this id, or of which this is one sequence (`CALL/0`)."""
        calls = {live.generation for live in self if name in _names(live)}
        return [live for live in self if live.generation in calls]

    def count(self, state: RequestState) -> dict[str, int]:
        """By the label of their priority."""
        counts = Counter(live.request.priority for live in self._live.values() if live.state is state)
        return {priority.label: counts[priority] for priority in Priority}

    def expected_waits_s(self, priority: Priority, now_s: float) -> list[float]:
        """From now to the first token, of those at the head of the queue, in ascending order."""
        waiting = [live for live in self if live.request.priority is priority and live.expected]
        return sorted(max(0.0, live.expected.first_token_s - now_s) for live in waiting if live.expected)

    def computing(self, ids: tuple[str, ...]) -> list[Live]:
        """These are in the step that now runs."""
        self._computing = frozenset(ids)
        computing = [self._live[i] for i in ids if i in self._live]
        for live in computing:
            live.run()
        return computing

    def handling(self, request_id: str | None) -> None:
        """This one is being handled outside of steps; None: nobody is any more."""
        self._handled = request_id

    def preempted(self, ids: Iterable[str]) -> None:
        """These have run and wait again, wherever."""
        for live in [self._live[i] for i in ids if i in self._live]:
            live.wait()

    def waiting(self, places: Iterable[Place], now_s: float) -> dict[Generation, Place]:
        """These wait, the foremost of all. Returns the first place of every call that waits as a whole."""
        foremost: dict[Generation, Place] = {}
        for live in self._live.values():
            live.expected = None
        for place in sorted(places, key=lambda place: place.position):
            live_there = self._live.get(place.id)
            if live_there is not None:
                live_there.wait_at(place, now_s)
                foremost.setdefault(live_there.generation, place)
        running = {live.generation for live in self if live.state is RequestState.RUNNING}
        return {generation: place for generation, place in foremost.items() if generation not in running}

    def advanced(self, event: TokenEvent) -> None:
        """The request has gained tokens or ended."""
        live = self._live[event.id]
        live.output.extend(event.tokens)
        live.suspicion, live.has_advanced = 0, True
        if event.finish is not None:
            del self._live[event.id]

    def remove(self, request_id: str) -> Live | None:
        self._held.pop(request_id, None)
        return self._live.pop(request_id, None)

    def due(self) -> list[Live]:
        """Who is to be sent to the engine now. They count as sent."""
        if not self._held or self._is_suspect(self._on_trial):
            return []
        self._on_trial = self._next_suspect()
        if self._on_trial is not None:
            return [self._held.pop(self._on_trial)]
        sent, self._held = list(self._held.values()), {}
        return sent

    @property
    def are_owed(self) -> bool:
        """The engine has some of them, and something to do."""
        return len(self._held) < len(self._live)

    def crashed(self, kind: DeathKind) -> list[Live]:
        """The engine died: accuse who was being computed. Returns who is to blame."""
        present = self._present()
        is_alone = len(present) == 1
        accused = [live for live in present if not (kind.is_from_outside and live.has_advanced)]
        for live in accused:
            live.suspicion = _SUSPICION[kind] + (live.suspicion if is_alone else 0)
        guilty = [live for live in accused if is_alone and live.suspicion >= _GUILTY]
        self._hold_all()
        newest_first = [live for live in self if live.suspicion and live not in guilty][::-1]
        self._suspects = [live.request.id for live in sorted(newest_first, key=_order_of_trial)]
        for live in self:
            live.has_advanced = False
        return guilty

    def _present(self) -> list[Live]:
        """Who was being handled, else who was in the step; if nobody was, all that the engine had."""
        if self._handled in self._live:
            return [self._live[self._handled]]
        computing = [live for live in self if live.request.id in self._computing]
        return computing or [live for live in self if live.request.id not in self._held]

    def _hold_all(self) -> None:
        for live in self:
            live.wait()
        self._held = dict(self._live)
        self._computing, self._handled = frozenset(), None
        self._on_trial = None

    def _next_suspect(self) -> str | None:
        """Those who are gone, or were cleared, need no trial."""
        while self._suspects:
            suspect = self._suspects.pop(0)
            if self._is_suspect(suspect):
                return suspect
        return None

    def _is_suspect(self, request_id: str | None) -> bool:
        return request_id in self._live and self._live[request_id].suspicion > 0


def _order_of_trial(live: Live) -> tuple[int, bool]:
    return -live.suspicion, live.has_advanced


def _names(live: Live) -> tuple[str, str]:
    """Its own, and its API call's."""
    return live.request.id, live.request.id.partition("/")[0]
