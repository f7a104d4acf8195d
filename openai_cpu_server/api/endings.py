"""Where every request ends, once, however it came in and however it went: the log's line, and the watch."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route, WebSocketRoute

from openai_cpu_server.api.access.scopes import QUIET_PATHS
from openai_cpu_server.api.errors import CLIENT_GONE
from openai_cpu_server.api.ticket import Ticket
from openai_cpu_server.observe.ended import Ended
from openai_cpu_server.observe.watch import Watch

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER = "other"


class Endings:
    def __init__(self, watch: Watch, routes: Iterable[BaseRoute]) -> None:
        self._watch = watch
        self._names = RouteNames(routes)

    def end(self, ticket: Ticket) -> None:
        is_quiet = ticket.path in QUIET_PATHS
        ended_s = time.monotonic()
        ticket.log(ended_s - ticket.started_s, quiet=is_quiet)
        self._watch.ended(
            Ended(
                id=ticket.id,
                origin=ticket.origin,
                method=ticket.method if ticket.method in _METHODS else _OTHER,
                route=self._names.of(ticket.path),
                priority=ticket.priority.label if ticket.priority is not None else "none",
                status=CLIENT_GONE if ticket.status is None else ticket.status,
                code=ticket.code,
                started_s=ticket.started_s,
                ended_s=ended_s,
                is_quiet=is_quiet,
                call=ticket.call,
                trace=ticket.trace,
            )
        )

    def row_begins(self) -> None:
        """A row of a batch; then either `end` or `row_put_off`, and `row_left` in any case."""
        self._watch.metrics.rows_running.inc()

    def row_put_off(self) -> None:
        """It will be run again: this was not its end."""
        self._watch.metrics.row_put_off()

    def row_left(self) -> None:
        self._watch.metrics.rows_running.dec()


class RouteNames:
    """One of few names for any path: clients cannot make up more."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, (Route, WebSocketRoute))]
        self._plain = {route.path: route.path for route in known if "{" not in route.path}
        self._patterns = [
            (route.path_regex, re.sub(r":\w+}", "}", route.path)) for route in known if "{" in route.path
        ]

    def of(self, path: str) -> str:
        name = self._plain.get(path)
        if name is not None:
            return name
        return next((name for pattern, name in self._patterns if pattern.match(path)), _OTHER)
