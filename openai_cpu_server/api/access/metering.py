"""The layer that holds a call to its key's limits for as long as it is served."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.access.authentication import identity_of
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.access.scopes import METERED_PATHS
from openai_cpu_server.api.ticket import ticket_of

_SCOPE_KEY = "openai_cpu_server.lease"


class Metering:
    def __init__(self, app: ASGIApp, *, limits: RateLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in METERED_PATHS:
            await self._app(scope, receive, send)
            return
        ticket = ticket_of(scope)
        async with self._limits.lease(identity_of(scope).key, ticket.headers) as lease:
            scope[_SCOPE_KEY] = lease
            try:
                await self._app(scope, receive, send)
            finally:
                lease.output_tokens = int(ticket.notes.get("output_tokens", 0))


def lease_of(scope: Scope) -> Lease:
    """Of a request on a metered path."""
    lease = scope[_SCOPE_KEY]
    assert isinstance(lease, Lease)
    return lease
