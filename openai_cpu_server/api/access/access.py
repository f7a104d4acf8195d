"""What a route asks of whoever comes. It stands in the table of routes: no path is compared anywhere else."""

from __future__ import annotations

import enum

import msgspec

from openai_cpu_server.api.access.keys import Scope


class Metering(enum.Enum):
    """How a request counts against the limits of its key."""

    NONE = "none"
    REQUESTS = "requests"
    """It counts in the minute, and takes no place of `concurrent`: it waits for a call that has one."""
    WORK = "work"
    """It takes a place, too, while it is served."""
    CALLS = "calls"
    """And its tokens count: it generates or embeds."""


class Callers(enum.Enum):
    """Who comes to a route."""

    CLIENTS = "clients"
    PROBES = "probes"
    """Machines ask all the time whether the server lives: they are answered beyond the limit of connections,
    too, and get no line in the log."""
    GATEWAYS = "gateways"
    """What stands in front of several servers reads this all the time: no line in the log, and no key under
    `--open-to-gateways`."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    scope: Scope | None
    """What the key must be for; None: the route needs no key."""
    metering: Metering = Metering.NONE
    callers: Callers = Callers.CLIENTS
    is_upload: bool = False
    """Its body is a file, which goes to disk and has a limit of its own."""

    @property
    def is_quiet(self) -> bool:
        """Its requests get no line in the log and no trace."""
        return self.callers is not Callers.CLIENTS


OPEN = Access(scope=None)
"""It tells nothing of this server that a stranger may not know."""
INFERENCE = Access(scope=Scope.INFERENCE)
REQUESTS = Access(scope=Scope.INFERENCE, metering=Metering.REQUESTS)
WORK = Access(scope=Scope.INFERENCE, metering=Metering.WORK)
CALLS = Access(scope=Scope.INFERENCE, metering=Metering.CALLS)
UPLOADS = Access(scope=Scope.INFERENCE, metering=Metering.WORK, is_upload=True)
PROBES = Access(scope=None, callers=Callers.PROBES)
METRICS = Access(scope=Scope.METRICS)
GATEWAYS = Access(scope=Scope.INFERENCE, callers=Callers.GATEWAYS)
GATEWAY_METRICS = Access(scope=Scope.METRICS, callers=Callers.GATEWAYS)
ADMIN = Access(scope=Scope.ADMIN)


def unmetered(access: Access) -> Access:
    """The same, and it counts against no limit."""
    return msgspec.structs.replace(access, metering=Metering.NONE)
