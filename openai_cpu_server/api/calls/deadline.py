"""How long a call may take."""

from __future__ import annotations

import time
from typing import Protocol

from openai_cpu_server.api.gates.ticket import Ticket
from openai_cpu_server.errors import DeadlineExceeded, ServerError


class Limited(Protocol):
    """What is being computed for a call."""

    def fail_in(self, seconds: float, error: ServerError) -> None: ...


def limit_time(work: Limited, ticket: Ticket, *limits_s: float | None) -> None:
    """Keeps the shortest of the limits, the client's or the server's. The call's time began when it came
    in."""
    given_s = [limit_s for limit_s in limits_s if limit_s is not None]
    if given_s:
        timeout_s = min(given_s)
        gone_s = time.monotonic() - ticket.started_s
        work.fail_in(timeout_s - gone_s, DeadlineExceeded(timeout_s))
