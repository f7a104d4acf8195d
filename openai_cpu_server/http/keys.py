"""API keys as the server holds them (digests, never the keys themselves), and what a route asks of whoever
comes."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.jobs.records import NO_LIMITS, StorageLimits


class Scope(enum.Enum):
    """What a key is for."""

    INFERENCE = "inference"
    """Models, generation, tokens; one's own requests."""
    METRICS = "metrics"
    ADMIN = "admin"
    """The cache, adapters, loading and unloading models, and everybody's requests."""


ALL_SCOPES = frozenset(Scope)
ALL_MCP = frozenset({"*", "url:*"})

Amount = Annotated[int, msgspec.Meta(ge=1)]


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key; None: there is no such limit."""

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    tokens_per_day: Amount | None = None
    concurrent: Amount | None = None
    """Calls that this server process serves at once."""
    batch_tokens_per_day: Amount | None = None
    """What rows of batches may use, which count in no other limit."""
    stored_mb: Amount | None = None
    """Files, results of batches, responses and conversations."""
    files: Amount | None = None

    @property
    def storage(self) -> StorageLimits:
        max_bytes = None if self.stored_mb is None else self.stored_mb * 1024 * 1024
        return StorageLimits(max_bytes=max_bytes, max_files=self.files)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The name of its holder, to whom the scheduler is fair; "" for the key of `--api-key`, which many may
    share."""
    digest: bytes
    """SHA-256 of the key."""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    priority: Priority | None = None
    """Requests that name no priority have this one; None: the server's default."""
    max_priority: Priority = Priority.INTERACTIVE
    """The best that its requests get, whatever they name."""
    models: frozenset[str] | None = None
    """The names of models that it may use; None: all."""
    mcp: frozenset[str] = frozenset()
    """The MCP servers that it may use: `NAME`, `NAME/TOOL`, `*`; `url:HOST` and `url:*` for those that a
    request names by their URL."""
    allowance: Allowance = Allowance()


class Identity(msgspec.Struct, frozen=True):
    """Who sent a request."""

    key: Key | None
    """None: the server has no keys, and everybody may do everything."""
    digest: str | None
    """The SHA-256, in hex, of the key that was sent, be it needed or not."""
    address: str | None = None
    """The address that it came from, as far as that is known; see `clients.client_address`."""

    @property
    def holder(self) -> str | None:
        """The key's name, where it has one."""
        return self.key.name or None if self.key else None

    @property
    def storage(self) -> StorageLimits:
        """What they may store."""
        return self.key.allowance.storage if self.key else NO_LIMITS

    @property
    def allowed_models(self) -> frozenset[str] | None:
        """The names of models that they may use; None: all."""
        return self.key.models if self.key else None

    def may_call(self, server: str, tool: str | None = None) -> bool:
        """`server`: the name of an MCP server, or `url:HOST`. `tool`: None, any of its tools."""
        if self.key is None:
            return True
        listed = self.key.mcp
        if server in listed or ("url:*" if server.startswith("url:") else "*") in listed:
            return True
        if tool is None:
            return any(one.startswith(f"{server}/") for one in listed)
        return f"{server}/{tool}" in listed

    def may(self, scope: Scope) -> bool:
        return self.key is None or scope in self.key.scopes


ANYBODY = Identity(key=None, digest=None)
"""Somebody of whom nothing is known, on a server without keys."""
STRANGER = Key(name="", digest=b"", scopes=frozenset())
"""Stands for the key of somebody who has none, on a server with keys: it may do nothing."""
VISITOR = Key(name="", digest=b"", scopes=frozenset({Scope.INFERENCE, Scope.METRICS}))
"""Stands for the key of somebody on another machine, on a server without keys: administrators are local."""


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
