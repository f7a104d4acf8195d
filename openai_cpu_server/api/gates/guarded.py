"""What stands before the handler of each route: none is reached but through the guard.

The guard runs when the router has matched a route, so that what it checks is what will be served.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Protocol

from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.api.access.access import INFERENCE, Access, Callers
from openai_cpu_server.api.access.clients import Network, is_local
from openai_cpu_server.api.access.identity import identify
from openai_cpu_server.api.access.key_ring import KeyRing
from openai_cpu_server.api.gates.browsers import check_origin, is_own_host
from openai_cpu_server.api.gates.fair_use import FairUse
from openai_cpu_server.api.gates.ticket import ticket_of
from openai_cpu_server.errors import TooManyConnections

EXCESS_CONNECTION = "excess_connection"
"""The web server sets this in the state of a request whose connection is one too many."""


class Guard(Protocol):
    async def admit(
        self, access: Access, handle: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None: ...


class GuardedRoute(Route):
    def __init__(self, route: Route, access: Access, guard: Guard) -> None:
        super().__init__(route.path, route.endpoint, methods=route.methods)
        self.access = access
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket_of(scope).route = route_name(self)
        await self._guard.admit(self.access, super().handle, scope, receive, send)


class GuardedSocket(WebSocketRoute):
    def __init__(self, route: WebSocketRoute, access: Access, guard: Guard) -> None:
        super().__init__(route.path, route.endpoint)
        self.access = access
        self._guard = guard

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        ticket_of(scope).route = route_name(self)
        await self._guard.admit(self.access, super().handle, scope, receive, send)


def guarded(route: BaseRoute, access: Access, guard: Guard) -> BaseRoute:
    if isinstance(route, WebSocketRoute):
        return GuardedSocket(route, access, guard)
    assert isinstance(route, Route), f"how is {route} guarded?"
    return GuardedRoute(route, access, guard)


def guarded_nowhere(not_found: ASGIApp, guard: Guard) -> ASGIApp:
    """What answers where there is no route: whoever may ask nothing is not told what there is."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        await guard.admit(INFERENCE, not_found, scope, receive, send)

    return handle


def route_name(route: Route | WebSocketRoute) -> str:
    """Its path, as documents and metrics show it."""
    return re.sub(r":\w+}", "}", route.path)


def operation_name(route: BaseRoute) -> str:
    """The route as the table of operations has it: `POST /v1/completions`."""
    assert isinstance(route, (Route, WebSocketRoute)), f"how is {route} described?"
    methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"WEBSOCKET"}
    (method,) = methods
    return f"{method} {route_name(route)}"


class RouteGuard:
    """Decides who comes in, and holds them to what they may use."""

    def __init__(
        self,
        fair_use: FairUse,
        *,
        keys: KeyRing,
        trusted_proxies: Collection[Network],
        origins: Collection[str],
        hosts: Collection[str],
        is_admin_open: bool,
    ) -> None:
        """`origins`: other servers' pages that may call; `*` is all. `hosts`: names of the server.

        `is_admin_open`: without keys everybody is an administrator; False: clients of this machine are.
        """
        self._fair_use = fair_use
        self._keys = keys
        self._trusted_proxies = trusted_proxies
        self._origins = origins
        self._hosts = hosts
        self._is_admin_open = is_admin_open

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
        is_administrator = self._is_admin_open or self._is_at_home(scope)
        identity = identify(
            scope, access, self._keys, self._trusted_proxies, is_administrator=is_administrator
        )
        ticket.client = identity.holder
        await self._fair_use.serve(access, handle, scope, receive, send)

    def _is_at_home(self, scope: Scope) -> bool:
        """Also a browser on this machine may show a page whose name points here: it calls by that name."""
        return is_local(scope) and is_own_host(scope, self._hosts)
