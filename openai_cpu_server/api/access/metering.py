"""The layer that holds a call to its key's limits for as long as it is served."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.access.authentication import identity_of
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.access.scopes import METERED_PATHS
from openai_cpu_server.api.calls.sender import PRIORITY_HEADER, Sender
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.api.ticket import ticket_of

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
            ticket.priority = self._sender(scope).announced_priority()
        scope[_SCOPE_KEY] = lease = self._limits.lease(identity_of(scope).key)
        async with lease:
            await self._app(scope, receive, send)

    def _sender(self, scope: Scope) -> Sender:
        header = Headers(scope=scope).get(PRIORITY_HEADER)
        return Sender.of(identity_of(scope), header=header, default=self._options.default_priority)


def lease_of(scope: Scope) -> Lease:
    """Of a request on a metered path."""
    lease = scope[_SCOPE_KEY]
    assert isinstance(lease, Lease)
    return lease


def limit_headers_of(scope: Scope) -> dict[str, str]:
    """What the response of a request is to say of its key's limits; nothing on paths that are not metered."""
    lease = scope.get(_SCOPE_KEY)
    return lease.headers if isinstance(lease, Lease) else {}
