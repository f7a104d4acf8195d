"""Context variable with the client that a task works for. Threads that the task starts inherit it."""

from __future__ import annotations

from contextvars import ContextVar

SERVER = ("server",)
"""Caller of work that the server does for no client."""
CALLER: ContextVar[tuple[str, ...]] = ContextVar("caller", default=SERVER)
"""Path from the client's group down to the client, as in `EngineRequest.turns`."""
