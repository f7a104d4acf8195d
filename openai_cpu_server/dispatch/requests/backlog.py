"""What is held for a reader who does not keep up."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.step import TokenLogprob

_GRACE_S = 1.0
"""A reader may be given much at once, such as the scores of a long prompt, and gets so long to take it."""
_EVENT_BYTES = 300
_LOGPROB_BYTES = 100


class Backlog:
    """Estimates the bytes of the events that wait for their reader."""

    def __init__(self, clock: Callable[[], float], *, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._since_s = 0.0
        """Since then the reader has been behind without a pause."""

    def add(self, event: TokenEvent) -> None:
        if not self._held_bytes:
            self._since_s = self._clock()
        self._held_bytes += _num_bytes(event)

    def take(self, event: TokenEvent) -> None:
        self._held_bytes -= _num_bytes(event)

    @property
    def is_too_much(self) -> bool:
        return self._held_bytes > self._max_bytes and self._clock() - self._since_s > _GRACE_S


def _num_bytes(event: TokenEvent) -> int:
    scores = _scores_bytes(event.logprobs) + _scores_bytes(event.prompt_logprobs)
    return _EVENT_BYTES + len(event.text) + scores


def _scores_bytes(logprobs: Iterable[TokenLogprob]) -> int:
    return sum(_LOGPROB_BYTES * (1 + len(entry.top)) for entry in logprobs)
