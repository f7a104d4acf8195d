"""What is noted about one HTTP request while it is served: its id, and the line that the log gets."""

from __future__ import annotations

import logging
import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import Scope

logger = logging.getLogger("openai_cpu_server.requests")

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_SCOPE_KEY = "openai_cpu_server.ticket"
_CLIENT_GONE = 499
"""nginx's word for a client that left before its answer."""


@dataclass
class Ticket:
    """Lives as long as its request. Whoever knows something for the log adds it to `notes`."""

    id: str
    route: str
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    """Set when the response begins."""
    notes: dict[str, str | int | float] = field(default_factory=dict)

    def client_gone(self) -> None:
        self.status = _CLIENT_GONE

    def failed(self, error: Exception) -> None:
        self.notes["error"] = type(error).__name__

    def log(self, *, quiet: bool) -> None:
        fields = {"id": self.id, "route": self.route, "status": self.status or "-", **self.notes}
        fields["total_ms"] = round(1000 * (time.monotonic() - self.started_s), 1)
        line = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.log(logging.DEBUG if quiet else logging.INFO, line)


def open_ticket(scope: Scope) -> Ticket:
    """With the client's own request id, where it sent a sane one."""
    given = Headers(scope=scope).get("x-request-id", "")
    request_id = given if _SANE_ID.fullmatch(given) else "req_" + secrets.token_hex(16)
    ticket = Ticket(request_id, f"{scope['method']} {scope['path'][:200]!r}".replace("'", ""))
    scope[_SCOPE_KEY] = ticket
    return ticket


def ticket_of(scope: Scope) -> Ticket:
    ticket = scope[_SCOPE_KEY]
    assert isinstance(ticket, Ticket)
    return ticket
