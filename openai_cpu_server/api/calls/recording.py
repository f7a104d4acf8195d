"""Listens to a call that goes on, so that its whole answer can be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from openai_cpu_server.contract.messages import TokenEvent

_MOST_FACTS = 131_072
"""A longer answer is not kept: some 20 MB would be held for as long as the call goes on. Each event is a
fact, and so is each log-probability that it tells."""


class Recorder:
    """`keep` is called with all events if all requests of the call end."""

    def __init__(self, num_requests: int, keep: Callable[[Sequence[TokenEvent]], None]) -> None:
        self._to_end = num_requests
        self._keep = keep
        self._events: list[TokenEvent] | None = []
        """None: it is too long."""
        self._num_facts = 0

    def note(self, event: TokenEvent) -> None:
        if self._events is None:
            return
        self._events.append(event)
        if event.finish is not None:
            self._to_end -= 1
        self._num_facts += _facts_of(event)
        if self._num_facts > _MOST_FACTS:
            self._events = None
        elif self._to_end == 0:
            self._keep(self._events)
            self._events = None


def _facts_of(event: TokenEvent) -> int:
    told = chain(event.logprobs, event.prompt_logprobs)
    return 1 + sum(1 + len(one.top) for one in told)
