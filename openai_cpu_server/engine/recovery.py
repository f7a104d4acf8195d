"""All live requests: who runs, who waits where, and what becomes of them when the engine process dies.

Pure bookkeeping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from openai_cpu_server.contract.messages import Place, TokenEvent
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine.generation import Generation
from openai_cpu_server.engine.live import Live, RequestState

MAX_CRASHES = 2
"""A request that was being computed in so many crashes in a row, without a token between, is to blame."""


class LiveRequests:
    """All live requests, and which of them wait outside the engine because they are suspected of killing it.

    After a crash, requests that were not being computed go back at once. Those that were go back one at a
    time, the next when the one before has made progress: so a second crash accuses only one of them.
    """

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}
        self._computing: frozenset[str] = frozenset()
        self._quarantine: list[str] = []
        self._on_trial: str | None = None

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: Live) -> None:
        self._live[live.request.id] = live

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

    def computing(self, ids: tuple[str, ...]) -> list[Live]:
        """These are in the step that now runs."""
        self._computing = frozenset(ids)
        computing = [self._live[i] for i in ids if i in self._live]
        for live in computing:
            live.run()
        return computing

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
        live.crashes = 0
        if event.finish is not None:
            del self._live[event.id]

    def remove(self, request_id: str) -> Live | None:
        return self._live.pop(request_id, None)

    def crashed(self) -> list[Live]:
        """The engine died: accuse who was being computed. Returns those who were so twice in a row."""
        accused = [live for live in self if live.request.id in self._computing]
        for live in accused:
            live.crashes += 1
        guilty = [live for live in accused if live.crashes >= MAX_CRASHES]
        for live in self:
            live.wait()
        self._computing = frozenset()
        self._quarantine = [live.request.id for live in self if live.crashes and live not in guilty]
        self._on_trial = None
        return guilty

    def innocent(self) -> list[Live]:
        """Who may be submitted to a new engine at once."""
        return [live for live in self if not live.crashes]

    def next_suspect(self) -> Live | None:
        """Who may be submitted now; None while another is on trial, and when nobody is left."""
        if self._is_suspect(self._on_trial):
            return None
        self._on_trial = next((i for i in self._quarantine if self._is_suspect(i)), None)
        if self._on_trial is None:
            self._quarantine.clear()
            return None
        self._quarantine.remove(self._on_trial)
        return self._live[self._on_trial]

    def _is_suspect(self, request_id: str | None) -> bool:
        return request_id in self._live and self._live[request_id].crashes > 0


def _names(live: Live) -> tuple[str, str]:
    """Its own, and its API call's."""
    return live.request.id, live.request.id.partition("/")[0]
