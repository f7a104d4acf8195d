"""The numbers of one call: what usage and the log need to know."""

from __future__ import annotations

import time
from collections import Counter

from openai_cpu_server.api.call import Call
from openai_cpu_server.api.render.common import Usage, cached_tokens, usage
from openai_cpu_server.api.ticket import Ticket
from openai_cpu_server.contract.messages import Finish, TokenEvent
from openai_cpu_server.engine.generation import Timings


class Tally:
    """Notes every event of a call as it passes."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._finishes: dict[str, Finish] = {}
        self._released: Counter[str] = Counter()
        """Tokens of each request so far; how many there were is known at its end."""
        self._first_event_s: float | None = None
        self.is_complete = False
        """All that the client is to get has been made, be it an error."""

    def note(self, event: TokenEvent) -> None:
        if self._first_event_s is None:
            self._first_event_s = time.monotonic()
        self._released[event.id] += len(event.tokens)
        if event.finish is not None:
            self._finishes[event.id] = event.finish

    def usage(self) -> Usage:
        """Known once every request of the call has finished."""
        return usage(self._call, self._finishes)

    def report(self, ticket: Ticket, timings: Timings) -> None:
        """For the log; also of a call that was left before its end."""
        ticket.notes["priority"] = self._call.priority.label
        ticket.notes["prompt_tokens"] = sum(len(prompt.tokens) for prompt in self._call.prompts)
        ticket.notes["cached_tokens"] = cached_tokens(self._call, self._finishes)
        ticket.notes["output_tokens"] = sum(self._output_tokens(request_id) for request_id in self._released)
        ticket.notes["queue_ms"] = round(timings.queue_ms, 1)
        if self._first_event_s is not None:
            ticket.notes["ttft_ms"] = round(1000 * (self._first_event_s - ticket.started_s), 1)

    def _output_tokens(self, request_id: str) -> int:
        finish = self._finishes.get(request_id)
        return self._released[request_id] if finish is None else finish.output_tokens
