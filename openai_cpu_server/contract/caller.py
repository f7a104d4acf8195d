"""Context variable that names the client on whose behalf a task works. Threads that a task starts inherit
it."""

from __future__ import annotations

from contextvars import ContextVar

SERVER = ("server",)
"""Caller of work that the server does for no client."""
CALLER: ContextVar[tuple[str, ...]] = ContextVar("caller", default=SERVER)
"""Path from the client's group down to the client, as in `EngineRequest.turns`."""
