"""API keys as digests, and the access that a route requires."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from openai_cpu_server.contract.request import Priority
from openai_cpu_server.jobs.records import NO_LIMITS, StorageLimits


class Scope(enum.Enum):
    INFERENCE = "inference"
    """Models, generation, tokens, and the client's own requests."""
    METRICS = "metrics"
    ADMIN = "admin"
    """Cache, adapters, loading of models, and all requests."""


ALL_SCOPES = frozenset(Scope)
ALL_MCP = frozenset({"*", "url:*"})

Amount = Annotated[int, msgspec.Meta(ge=1)]


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key, or None for no limit."""

    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    tokens_per_day: Amount | None = None
    concurrent: Amount | None = None
    """Calls at once in this server process."""
    batch_tokens_per_day: Amount | None = None
    """Tokens of batch rows, which no other limit counts."""
    stored_mb: Amount | None = None
    """Files, results of batches, responses and conversations."""
    files: Amount | None = None

    @property
    def storage(self) -> StorageLimits:
        max_bytes = None if self.stored_mb is None else self.stored_mb * 1024 * 1024
        return StorageLimits(max_bytes=max_bytes, max_files=self.files)


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Holder, to whom the scheduler is fair, or "" for the key of `--api-key`, which many may share."""
    digest: bytes
    """SHA-256 of the key."""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    priority: Priority | None = None
    """Priority of requests that name none, or None for the server's default."""
    max_priority: Priority = Priority.INTERACTIVE
    models: frozenset[str] | None = None
    """Names of allowed models, or None for all."""
    mcp: frozenset[str] = frozenset()
    """Allowed MCP servers: `NAME`, `NAME/TOOL`, `*`; `url:HOST` and `url:*` for servers named by URL."""
    allowance: Allowance = Allowance()


class Identity(msgspec.Struct, frozen=True):
    key: Key | None
    """Key, or None on a server without keys, where everything is allowed."""
    digest: str | None
    """SHA-256 in hex of the key that was sent, even if it was not needed."""
    address: str | None = None

    @property
    def holder(self) -> str | None:
        return self.key.name or None if self.key else None

    @property
    def storage(self) -> StorageLimits:
        return self.key.allowance.storage if self.key else NO_LIMITS

    @property
    def allowed_models(self) -> frozenset[str] | None:
        return self.key.models if self.key else None

    def may_call(self, server: str, tool: str | None = None) -> bool:
        """`server`: name of an MCP server, or `url:HOST`. `tool`: None for any of its tools."""
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
STRANGER = Key(name="", digest=b"", scopes=frozenset())
"""Stands for the missing key on a server with keys; allows nothing."""
VISITOR = Key(name="", digest=b"", scopes=frozenset({Scope.INFERENCE, Scope.METRICS}))
"""Stands for the key of a remote sender on a server without keys, whose administrators are local."""


class Metering(enum.Enum):
    NONE = "none"
    REQUESTS = "requests"
    """Counts per minute but not in `concurrent`, because it waits for a call that does."""
    WORK = "work"
    """Counts in `concurrent` too."""
    CALLS = "calls"
    """Counts tokens too, because it generates or embeds."""


class Callers(enum.Enum):
    CLIENTS = "clients"
    PROBES = "probes"
    """Health checks, which are not logged and answered even beyond the limit of connections."""
    GATEWAYS = "gateways"
    """Frequent readers in front of several servers. Not logged, and no key under `--open-to-gateways`."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    scope: Scope | None
    """Required scope, or None if the route needs no key."""
    metering: Metering = Metering.NONE
    callers: Callers = Callers.CLIENTS
    is_upload: bool = False

    @property
    def is_quiet(self) -> bool:
        return self.callers is not Callers.CLIENTS


OPEN = Access(scope=None)
"""For routes that reveal nothing secret."""
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
    return msgspec.structs.replace(access, metering=Metering.NONE)
