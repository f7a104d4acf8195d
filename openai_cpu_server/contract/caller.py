"""Context variable with the client that a task works for, inherited by threads."""

from __future__ import annotations

from contextvars import ContextVar

SERVER = ("server",)
"""Work that the server does for no client."""
CALLER: ContextVar[tuple[str, ...]] = ContextVar("caller", default=SERVER)
