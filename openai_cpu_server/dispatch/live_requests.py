"""All live requests: who runs, who waits where, and who is outside the engine. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import Place, TokenEvent
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.death import DeathKind
from openai_cpu_server.dispatch.embedding import Embedding
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.dispatch.live import Live
from openai_cpu_server.dispatch.trials import Trials, Verdict


class LiveRequests:
    """All live requests, and which of them wait outside the engine because it may die of one."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}
        self._computing: frozenset[str] = frozenset()
        self._handled: str | None = None
        """Who is handled outside of steps."""
        self._held: dict[str, Live] = {}
        """They are not in the engine; in the order of their arrival."""
        self._trials = Trials()

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
        answers = {live.answer for live in self if name in _names(live)}
        return [live for live in self if live.answer in answers]

    def count(self, state: RequestState) -> dict[str, int]:
        """How many are in this state, by the label of their priority."""
        counts = Counter(live.request.priority for live in self._live.values() if live.state is state)
        return {priority.label: counts[priority] for priority in Priority}

    def expected_waits_s(self, priority: Priority, now_s: float) -> list[float]:
        """Times from now to the first tokens of those at the head of the queue, in ascending order."""
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
        """These have run and wait again, wherever in the queue."""
        for live in [self._live[i] for i in ids if i in self._live]:
            live.wait()

    def waiting(self, places: Iterable[Place], now_s: float) -> dict[Generation | Embedding, Place]:
        """The head of the queue. Returns the first place of every call that waits as a whole."""
        foremost: dict[Generation | Embedding, Place] = {}
        for live in self._live.values():
            live.expected = None
        for place in sorted(places, key=lambda place: place.position):
            live_there = self._live.get(place.id)
            if live_there is not None:
                live_there.wait_at(place, now_s)
                foremost.setdefault(live_there.answer, place)
        running = {live.answer for live in self if live.state is RequestState.RUNNING}
        return {answer: place for answer, place in foremost.items() if answer not in running}

    def advanced(self, event: TokenEvent) -> None:
        """The request has gained tokens or ended."""
        live = self._live[event.id]
        live.output.extend(event.tokens)
        self._trials.advanced(live)
        if event.finish is not None:
            del self._live[event.id]

    def embedded(self, event: Embedded) -> None:
        """The request has gained vectors or ended."""
        live = self._live[event.id]
        live.num_embedded += event.count
        self._trials.advanced(live)
        if event.error is not None or live.num_embedded == live.num_inputs:
            del self._live[event.id]

    def remove(self, request_id: str) -> Live | None:
        self._held.pop(request_id, None)
        live = self._live.pop(request_id, None)
        if live is not None:
            live.suspicion = 0
        return live

    def due(self) -> list[Live]:
        """Who is to be sent to the engine now. They count as sent."""
        due = self._trials.admitted(self._held.values()) if self._held else []
        for live in due:
            del self._held[live.request.id]
        return due

    @property
    def are_owed(self) -> bool:
        """The engine has some of them, and something to do."""
        return len(self._held) < len(self._live)

    def answers(self) -> set[Generation | Embedding]:
        """Those of the API calls that they belong to."""
        return {live.answer for live in self._live.values()}

    def crashed(self, kind: DeathKind) -> Verdict:
        """The engine died; all are outside of it now."""
        verdict = self._trials.died(kind, self._present(), self._live.get(self._handled or ""))
        for live in self:
            live.wait()
            live.has_advanced = False
        self._held = dict(self._live)
        self._computing, self._handled = frozenset(), None
        return verdict

    def _present(self) -> list[Live]:
        """Who was in the step or was being handled; if nobody was, all that the engine had."""
        at_work = [live for live in self if live.request.id in {*self._computing, self._handled}]
        return at_work or [live for live in self if live.request.id not in self._held]


def _names(live: Live) -> tuple[str, str]:
    """Its own, and its API call's."""
    return live.request.id, live.request.id.partition("/")[0]
