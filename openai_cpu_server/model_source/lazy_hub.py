"""Module `hub`, imported at first use, because the hub's library takes half a second and a quarter of a
start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai_cpu_server.model_source import hub
else:
    import importlib

    class _LazyHub:
        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module("openai_cpu_server.model_source.hub"), name)

    hub = _LazyHub()

__all__ = ["hub"]
