"""All live requests: who runs, and who waits where. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import LiveRequest, RequestState
from openai_cpu_server.contract.messages import Place, TokenEvent
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.dispatch.requests.awaiting import Awaiting
from openai_cpu_server.dispatch.requests.live import Live, names_of


class LiveRequests:
    """In the order of their arrival."""

    def __init__(self) -> None:
        self._live: dict[str, Live] = {}

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._live.values()))

    def __len__(self) -> int:
        return len(self._live)

    def add(self, live: Live) -> None:
        self._live[live.request.id] = live

    def snapshots(self, now_s: float) -> list[LiveRequest]:
        return [live.snapshot(now_s) for live in self]

    def get(self, request_id: str) -> Live | None:
        return self._live.get(request_id)

    def call_of(self, name: str) -> list[Live]:
        """All of the API call that has this id, or of which this is one sequence (`CALL/0`)."""
        answers = {live.answer for live in self if name in names_of(live.request.id)}
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
        computing = [self._live[i] for i in ids if i in self._live]
        for live in computing:
            live.run()
        return computing

    def preempted(self, ids: Iterable[str]) -> None:
        """These have run and wait again, wherever in the queue."""
        for live in [self._live[i] for i in ids if i in self._live]:
            live.wait()

    def waiting(
        self, places: Iterable[Place], now_s: float, *, among: Iterable[Live] | None = None
    ) -> dict[Awaiting, Place]:
        """The head of the queue. Returns the first place of every call that waits as a whole.

        `among`: those who wait there, where there are several queues; None: all.
        """
        foremost: dict[Awaiting, Place] = {}
        for live in self._live.values() if among is None else among:
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
        self._live[event.id].output.extend(event.tokens)
        if event.finish is not None:
            del self._live[event.id]

    def embedded(self, event: Embedded) -> None:
        """The request has gained vectors or ended."""
        live = self._live[event.id]
        live.num_embedded += event.count
        if event.error is not None or live.num_embedded == live.num_inputs:
            del self._live[event.id]

    def remove(self, request_id: str) -> Live | None:
        live = self._live.pop(request_id, None)
        if live is not None:
            live.suspicion = 0
        return live

    def answers(self) -> set[Awaiting]:
        """Those of the API calls that they belong to."""
        return {live.answer for live in self._live.values()}
