"""What calls want of a replica, with the names of their prompts' blocks."""

from __future__ import annotations

from openai_cpu_server.contract.prefix import block_hashes
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.replicas.report import Wanted


class Wanting:
    """Remembers the names as long as a request lives: one that waits is looked at again and again, and
    hashing a long prompt takes as long as all else together."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By request: the length of its output then, and the names."""
        self._avoided: dict[str, frozenset[str]] = {}

    def of(self, live: Live) -> Wanted:
        """The sequences of a call share their prompt: what the first of them wants is what the call wants."""
        request = live.request
        avoids = self._avoided.get(request.id, frozenset())
        if not isinstance(request, GenerationRequest):
            return Wanted(request.id, request.priority, request.num_tokens, avoids=avoids)
        num_tokens = len(request.tokens) + len(live.output)
        return Wanted(request.id, request.priority, num_tokens, self._blocks(request, live), avoids=avoids)

    def avoid(self, live: Live, replica: str) -> None:
        """It was with this replica when it was lost."""
        name = live.request.id
        self._avoided[name] = self._avoided.get(name, frozenset()) | {replica}

    def forget(self, live: Live) -> None:
        self._names.pop(live.request.id, None)
        self._avoided.pop(live.request.id, None)

    def _blocks(self, request: GenerationRequest, live: Live) -> tuple[int, ...]:
        num_output, names = self._names.get(request.id, (-1, ()))
        if num_output != len(live.output):
            names = block_hashes((*request.tokens, *live.output), request.cells_namespace)
            self._names[request.id] = (len(live.output), names)
        return names
