"""Vectors on their way to the API: what the engine computes step by step becomes one answer."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.dispatch.requests.answer import Answer
from openai_cpu_server.dispatch.requests.awaiting import TakesVectors
from openai_cpu_server.errors import GenerationFailed


class Embedding(Answer[Embedded], TakesVectors):
    """The vectors of one API call. `async with` it: leaving cancels what still runs."""

    def __init__(
        self, request: EmbedRequest, *, cancel: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__([request.id], cancel=cancel, clock=clock)
        self._request = request
        self._num_embedded = 0

    async def __aenter__(self) -> Embedding:
        return self

    async def vectors(self) -> bytes:
        """All rows, in the order of the inputs; to be called once. Raises `GenerationFailed`, and what else
        ended it, such as `RequestCancelled`."""
        rows = []
        while not self._is_over:
            item = await self._take()
            if isinstance(item, Embedded):
                rows.append(item.vectors)
        return b"".join(rows)

    @property
    def figures(self) -> Figures:
        """Times up to the end, or up to now while it has not ended."""
        times = self._clocking
        busy_s = times.ended - times.started
        tokens = sum(map(len, self._request.inputs[: self._num_embedded]))
        return Figures(
            queue_ms=1000 * (times.started - times.submitted),
            prefill_ms=1000 * busy_s,
            latency_ms=1000 * (times.ended - times.submitted),
            tokens_per_second=tokens / busy_s if busy_s > 0 else 0.0,
        )

    # -- called by `Replay` ----------------------------------------------------------------------------

    def push(self, event: Embedded) -> None:
        self._clocking.start()
        if event.error is not None:
            self.fail(event.id, GenerationFailed(event.error))
            return
        self._num_embedded += event.count
        if self._num_embedded == len(self._request.inputs):
            self._leave(event.id)
        self._put(event)
