"""Live requests that are outside the engine, for it may die of one of them. Pure bookkeeping."""

from __future__ import annotations

from openai_cpu_server.dispatch.death import DeathKind
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.dispatch.requests.live_requests import LiveRequests
from openai_cpu_server.dispatch.requests.trials import Trials, Verdict


class Outside:
    """Which of the live requests are not in the engine, and who of them may go in."""

    def __init__(self, live: LiveRequests) -> None:
        self._live = live
        self._held: dict[str, Live] = {}
        """In the order of their arrival."""
        self._computing: frozenset[str] = frozenset()
        self._handled: str | None = None
        """Who is handled outside of steps."""
        self._trials = Trials()

    def add(self, live: Live) -> None:
        """It waits here until it is `due`."""
        self._held[live.request.id] = live

    def remove(self, request_id: str) -> None:
        """It lives no more, or was never here."""
        self._held.pop(request_id, None)

    def due(self) -> list[Live]:
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

    def advanced(self, live: Live) -> None:
        """It has gained tokens or vectors, or has ended."""
        self._trials.advanced(live)

    def crashed(self, kind: DeathKind) -> Verdict:
        """The engine died; all are outside of it now."""
        verdict = self._trials.died(kind, self._present(), self._live.get(self._handled or ""))
        for live in self._live:
            live.wait()
            live.has_advanced = False
        self._held = {live.request.id: live for live in self._live}
        self._computing, self._handled = frozenset(), None
        return verdict

    def _present(self) -> list[Live]:
        """Who was in the step or was being handled; if nobody was, all that the engine had."""
        at_work = [live for live in self._live if live.request.id in {*self._computing, self._handled}]
        return at_work or [live for live in self._live if live.request.id not in self._held]
