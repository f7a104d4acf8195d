"""API keys as the server holds them (digests, never the keys themselves), and what each path asks of them."""

from __future__ import annotations

import enum

import msgspec

from openai_cpu_server.contract.request import Priority


class Scope(enum.Enum):
    """What a key is for."""

    INFERENCE = "inference"
    """Models, generation, tokens; one's own requests."""
    METRICS = "metrics"
    ADMIN = "admin"
    """The cache, and everybody's requests."""


ALL_SCOPES = frozenset(Scope)


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one key; None: there is no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None
    """Calls being served at once, by this server process."""


class Key(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Its holder, to whom the scheduler is fair; "": the key of `--api-key`, which many may share."""
    digest: bytes
    """SHA-256 of the key."""
    scopes: frozenset[Scope] = frozenset({Scope.INFERENCE})
    priority: Priority | None = None
    """Of requests that name none; None: the server's default."""
    models: frozenset[str] | None = None
    """Names that it may use; None: all."""
    allowance: Allowance = Allowance()


class Identity(msgspec.Struct, frozen=True):
    """Who sent a request."""

    key: Key | None
    """None: the server has no keys, and everybody may do everything."""
    digest: str | None
    """SHA-256, in hex, of the key that was sent, be it needed or not."""
    address: str | None = None
    """Where it came from, as far as that is known; see `addresses.client_address`."""

    @property
    def holder(self) -> str | None:
        """The key's name, where it has one."""
        return self.key.name or None if self.key else None

    @property
    def allowed_models(self) -> frozenset[str] | None:
        """The names of models that they may use; None: all."""
        return self.key.models if self.key else None

    def may(self, scope: Scope) -> bool:
        return self.key is None or scope in self.key.scopes


ANYBODY = Identity(key=None, digest=None)
"""Of whom nothing is known, on a server without keys."""


OPEN_PATHS = frozenset({"/health", "/ready"})
"""Asked by machines all the time: no key, no line in the log."""
QUIET_PATHS = OPEN_PATHS | {"/metrics"}
"""No line in the log, no trace."""
_DESCRIPTION_PATH = "/openapi.json"
"""Says nothing that the source does not say: no key."""
_SCOPES = {
    "/metrics": Scope.METRICS,
    "/v1/stats": Scope.METRICS,
    "/v1/cache": Scope.ADMIN,
    "/v1/cache/stats": Scope.ADMIN,
}
METERED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Calls there count against a key's limits."""


def required_scope(path: str) -> Scope | None:
    """None: the path is open."""
    return None if path in OPEN_PATHS or path == _DESCRIPTION_PATH else _SCOPES.get(path, Scope.INFERENCE)
