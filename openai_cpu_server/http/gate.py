"""What stands before the handler of each route: who may come in, and what they may use."""

from __future__ import annotations

import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.api.access.access import Access, Callers, Metering
from openai_cpu_server.api.access.clients import is_local
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.access.rate_limits import Lease, RateLimits
from openai_cpu_server.api.gates.browsers import canonical_origin, check_origin, is_own_host
from openai_cpu_server.api.gates.ticket import Ticket, ticket_of
from openai_cpu_server.api.options import ApiOptions
from openai_cpu_server.errors import BodyTooLarge, TooManyConnections
from openai_cpu_server.http.body import BodyBudget, HeldBody, check_announced, paced
from openai_cpu_server.http.context import PRIORITY_HEADER, RequestContext, Sender, put_context
from openai_cpu_server.http.identity import Claim

_SPOOLED_BYTES = 1024 * 1024
"""Starlette's reader of forms keeps so much of a file in memory."""
EXCESS_CONNECTION = "excess_connection"
"""The web server sets this in the state of a request whose connection is one too many."""


class RouteGuard:
    """Decides who comes in, holds them to what they may use as long as they are served, and each body to its
    size and pace. It makes the request's context."""

    def __init__(self, *, keys: KeyRing, limits: RateLimits, bodies: BodyBudget, options: ApiOptions) -> None:
        self._keys = keys
        self._limits = limits
        self._bodies = bodies
        self._options = options
        self._origins = frozenset(map(canonical_origin, options.cors_origins))
        self._hosts = options.hosts or {"localhost"}

    async def admit(
        self, access: Access, handle: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Raises TooManyConnections, OriginRefused, Unauthorized, Forbidden, RequestsLimited, and what its
        body is refused with."""
        ticket = ticket_of(scope)
        ticket.is_quiet = access.is_quiet
        if access.callers is not Callers.PROBES and scope.get("state", {}).get(EXCESS_CONNECTION):
            raise TooManyConnections
        check_origin(scope, self._origins)
        context = self._context(access, scope, ticket)
        put_context(scope, context)
        if scope["type"] != "http":  # the messages of a WebSocket are held to the same where they are read
            await handle(scope, receive, send)
            return
        if access.metering is Metering.CALLS and scope["method"] == "POST":
            ticket.priority = context.sender.announced_priority()
        max_bytes = self._max_bytes(access)
        await check_announced(scope, receive, max_bytes)
        async with context.lease or contextlib.nullcontext():
            try:
                await handle(scope, self._counted(receive, context.body, max_bytes), send)
            finally:
                context.body.release()

    def _context(self, access: Access, scope: Scope, ticket: Ticket) -> RequestContext:
        """Raises Unauthorized, Forbidden."""
        is_administrator = self._options.is_admin_open or self._is_at_home(scope)
        proxies = self._options.trusted_proxies
        claim = Claim.of(scope, access, self._keys, proxies, is_administrator=is_administrator)
        identity = claim.identity(self._keys)
        ticket.client = identity.holder
        header = Headers(scope=scope).get(PRIORITY_HEADER)
        most_bytes = _SPOOLED_BYTES if access.is_upload else self._max_bytes(access)
        return RequestContext(
            ticket,
            Sender.of(identity, header=header, default=self._options.default_priority),
            claim=claim,
            lease=self._lease(access, identity),
            body=HeldBody(self._bodies, most_bytes),
            timeout_s=self._options.request_timeout_s,
        )

    def _lease(self, access: Access, identity: Identity) -> Lease | None:
        if access.metering is Metering.NONE:
            return None
        return self._limits.lease(identity.key, takes_place=access.metering is not Metering.REQUESTS)

    def _max_bytes(self, access: Access) -> int:
        return self._options.max_upload_bytes if access.is_upload else self._options.max_body_bytes

    def _counted(self, receive: Receive, held: HeldBody, max_bytes: int) -> Receive:
        """Returns a `receive` that raises for a body that is too large, too slow or too much."""
        in_time, received = paced(receive, self._options.read_timeout_s), 0

        async def counted() -> Message:
            nonlocal received
            message = await in_time()
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise BodyTooLarge(max_bytes)
            held.has_grown(received)
            return message

        return counted

    def _is_at_home(self, scope: Scope) -> bool:
        """Also a browser on this machine may show a page whose name points here: it calls by that name."""
        return is_local(scope) and is_own_host(scope, self._hosts)
