"""Until the families' routes take the context themselves."""

from __future__ import annotations

from starlette.types import Scope

from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.http.context import context_of


def identity_of(scope: Scope) -> Identity:
    """Returns who sent this request."""
    return context_of(scope).identity
