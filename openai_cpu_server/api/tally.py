"""The numbers of one call: what usage, the log and the watch need to know."""

from __future__ import annotations

import time
from collections import Counter

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.render.common import Usage, cached_tokens, usage
from openai_cpu_server.api.ticket import Ticket
from openai_cpu_server.contract.engine import Timings
from openai_cpu_server.contract.messages import Finish, TokenEvent
from openai_cpu_server.observe.distribution import Distribution
from openai_cpu_server.observe.ended import CallFigures

_UNFINISHED = "unfinished"
"""How a sequence ended that somebody else ended."""


class Tally:
    """Notes every event of a call as it passes. Made when the call is submitted."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._finishes: dict[str, Finish] = {}
        self._released: Counter[str] = Counter()
        """Tokens of each request so far; how many there were is known at its end."""
        self._submitted_s = time.monotonic()
        self._first_event_s: float | None = None
        self._last_s: dict[str, float] = {}
        """When each request's last tokens came."""
        self._gaps = Distribution()
        self.is_complete = False
        """All that the client is to get has been made, be it an error."""

    def note(self, event: TokenEvent, arrived_s: float) -> None:
        """(For every event of every stream: a microsecond.)

        `arrived_s`: when it came from the engine, on the monotonic clock. A client that reads slowly has its
        events noted late, but that says nothing about how fast they were made.
        """
        if self._first_event_s is None:
            self._first_event_s = arrived_s
        num_tokens = len(event.tokens)
        if num_tokens:
            last_s = self._last_s.get(event.id)
            if last_s is not None:
                self._gaps.add((arrived_s - last_s) / num_tokens, num_tokens)
            self._last_s[event.id] = arrived_s
            self._released[event.id] += num_tokens
        if event.finish is not None:
            self._finishes[event.id] = event.finish

    def usage(self) -> Usage:
        """Known once every request of the call has finished."""
        return usage(self._call, self._finishes)

    def report(self, ticket: Ticket, timings: Timings) -> None:
        """What it came to; also of a call that was left before its end."""
        figures = ticket.call = self._figures(ticket, timings)
        ticket.notes["prompt_tokens"] = figures.prompt_tokens
        ticket.notes["cached_tokens"] = figures.cached_tokens
        ticket.notes["output_tokens"] = figures.output_tokens
        ticket.notes["finish_reason"] = ",".join(sorted(set(figures.finish_reasons)))
        ticket.notes["queue_ms"] = round(timings.queue_ms, 1)
        if figures.ttft_s is not None:
            ticket.notes["ttft_ms"] = round(1000 * figures.ttft_s, 1)

    def _figures(self, ticket: Ticket, timings: Timings) -> CallFigures:
        first_s, latency_s = self._first_event_s, timings.latency_ms / 1000
        return CallFigures(
            prompt_tokens=sum(len(prompt.tokens) for prompt in self._call.prompts),
            cached_tokens=cached_tokens(self._call, self._finishes),
            output_tokens=sum(self._output_tokens(request.id) for request in self._call.requests),
            finish_reasons=tuple(self._finish_reason(request.id) for request in self._call.requests),
            submitted_s=min(self._submitted_s, time.monotonic() - latency_s),
            queue_s=timings.queue_ms / 1000,
            prefill_s=timings.prefill_ms / 1000,
            decode_s=timings.generation_ms / 1000,
            ttft_s=None if first_s is None else first_s - ticket.started_s,
            gaps=self._gaps,
        )

    def _finish_reason(self, request_id: str) -> str:
        finish = self._finishes.get(request_id)
        return _UNFINISHED if finish is None else finish.reason.value

    def _output_tokens(self, request_id: str) -> int:
        finish = self._finishes.get(request_id)
        return self._released[request_id] if finish is None else finish.output_tokens
