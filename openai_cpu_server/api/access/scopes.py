"""What each path asks of a key. A path that is not named here asks for inference."""

from __future__ import annotations

from openai_cpu_server.api.access.keys import Scope

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
