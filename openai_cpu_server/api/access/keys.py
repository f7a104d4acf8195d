"""API keys as the server holds them (digests, never the keys themselves), and what each path asks of them."""

from __future__ import annotations

import enum

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


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key; None: there is no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None
    """Calls that this server process serves at once."""
    batch_tokens_per_day: int | None = None
    """Of rows of batches, which count in no other limit."""
    stored_mb: int | None = None
    """Files, results of batches, and responses."""
    files: int | None = None

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

    def may(self, scope: Scope) -> bool:
        return self.key is None or scope in self.key.scopes


ANYBODY = Identity(key=None, digest=None)
"""Somebody of whom nothing is known, on a server without keys."""
STRANGER = Key(name="", digest=b"", scopes=frozenset())
"""Stands for the key of somebody who has none, on a server with keys: it may do nothing."""


OPEN_PATHS = frozenset({"/health", "/ready"})
"""Machines ask these all the time. They need no key and get no line in the log."""
GATEWAY_METRICS_PATH = "/metrics/gateway"
GATEWAY_PATHS = frozenset({"/version", "/metrics", GATEWAY_METRICS_PATH})
"""What gateways in front of several servers read. `--open-to-gateways` lets them in without a key."""
QUIET_PATHS = OPEN_PATHS | GATEWAY_PATHS
"""These get no line in the log and no trace."""
_DESCRIPTION_PATH = "/openapi.json"
"""It says nothing that the source does not say, so it needs no key."""
_PAGE = "/"
PAGE_FILES = "/page/"
"""The page and its files tell nothing of this server: a browser gets them before somebody enters a key."""
_SCOPES = {
    "/metrics": Scope.METRICS,
    GATEWAY_METRICS_PATH: Scope.METRICS,
    "/v1/stats": Scope.METRICS,
    "/v1/cache": Scope.ADMIN,
    "/v1/cache/stats": Scope.ADMIN,
}
_ADAPTERS = "/v1/adapters"
METERED_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/v1/generate",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
    }
)
"""Calls there count against a key's limits."""


_KEEPING_ACTIONS = ("/load", "/unload")


def required_scope(path: str) -> Scope | None:
    """The scope that a key needs for this path; None: the path is open."""
    if path in OPEN_PATHS or path in (_DESCRIPTION_PATH, _PAGE) or path.startswith(PAGE_FILES):
        return None
    is_of_adapters = path == _ADAPTERS or path.startswith(f"{_ADAPTERS}/")
    if is_of_adapters or (path.startswith("/v1/models/") and path.endswith(_KEEPING_ACTIONS)):
        return Scope.ADMIN
    return _SCOPES.get(path, Scope.INFERENCE)
