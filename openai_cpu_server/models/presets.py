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

    def over(self, below: Preset) -> Preset:
        """Merge presets, because a name derived from a derived name refers to its model."""
        return Preset(
            base=below.base,
            system=self.system or below.system,
            template=self.template or below.template,
            messages=self.messages or below.messages,
            parameters={**below.parameters, **self.parameters},
            max_tokens=below.max_tokens if self.max_tokens is None else self.max_tokens,
            stop=self.stop or below.stop,
        )
