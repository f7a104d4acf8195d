"""The client on whose behalf a task works. Threads that a task starts inherit it."""

from __future__ import annotations

from contextvars import ContextVar

SERVER = ("server",)
"""The server itself, when it works for no client."""
CALLER: ContextVar[tuple[str, ...]] = ContextVar("caller", default=SERVER)
"""From the group that the client belongs to down to itself, as `EngineRequest.turns`."""
