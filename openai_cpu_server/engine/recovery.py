"""What becomes of the live requests when the engine process dies. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from openai_cpu_server.contract.messages import Submit, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine.generation import Generation

MAX_CRASHES = 2
"""A request that was being computed in so many crashes in a row, without a token between, is to blame."""


@dataclass
class Live:
    """An accepted request that has not ended, with what it has produced."""

    request: GenerationRequest
    generation: Generation
    output: list[int] = field(default_factory=list)
    crashes: int = 0
    """In a row, that happened while it was being computed."""

    def submit(self) -> Submit:
        return Submit(request=self.request, output=tuple(self.output))


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

    def computing(self, ids: tuple[str, ...]) -> list[Live]:
        """These are in the step that now runs."""
        self._computing = frozenset(ids)
        return [self._live[i] for i in ids if i in self._live]

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
