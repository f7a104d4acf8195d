"""Names derived from models at run time: the same model with preset messages and parameters."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class PresetMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults for requests that use a derived name."""

    base: str
    """Name of the underlying model, never another derived name."""
    system: str = ""
    """System message for conversations without one, or ""."""
    template: str = ""
    """Ollama template that replaces the model's own, or ""."""
    messages: tuple[PresetMessage, ...] = ()
    """Messages before those of each conversation."""
    parameters: Mapping[str, int | float] = {}
    """Sampling parameters by the contract's names."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
