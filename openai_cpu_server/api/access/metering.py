"""The layer that holds a call to its key's limits for as long as it is served."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.access.authentication import identity_of
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.access.scopes import METERED_PATHS
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.resolve.priority import HEADER, likely_priority
from openai_cpu_server.api.ticket import ticket_of
from openai_cpu_server.contract.request import Priority

_SCOPE_KEY = "openai_cpu_server.lease"


class Metering:
    def __init__(self, app: ASGIApp, *, limits: RateLimits, options: ApiOptions) -> None:
        self._app = app
        self._limits = limits
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in METERED_PATHS:
            await self._app(scope, receive, send)
            return
        ticket = ticket_of(scope)
        if scope["method"] == "POST":
            ticket.priority = self._likely_priority(scope)
        async with self._limits.lease(identity_of(scope).key, ticket.headers) as lease:
            scope[_SCOPE_KEY] = lease
            try:
                await self._app(scope, receive, send)
            finally:
                lease.output_tokens = int(ticket.notes.get("output_tokens", 0))

    def _likely_priority(self, scope: Scope) -> Priority | None:
        """Until the body is read: it may be refused before."""
        default = self._options.seen_by(identity_of(scope).key).default_priority
        return likely_priority(b"", header=Headers(scope=scope).get(HEADER), default=default)


def lease_of(scope: Scope) -> Lease:
    """Of a request on a metered path."""
    lease = scope[_SCOPE_KEY]
    assert isinstance(lease, Lease)
    return lease
