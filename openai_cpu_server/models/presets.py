"""Names that were made of models while the server runs: the same model, with something said beforehand."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class PresetMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """What a request by such a name means where it says nothing itself."""

    base: str
    """The name of the model that it is made of; never another such name."""
    system: str = ""
    """For conversations that begin with none; "": nothing."""
    template: str = ""
    """Ollama's, which writes prompts in place of the model's own; "": that one does."""
    messages: tuple[PresetMessage, ...] = ()
    """They stand before those of each conversation."""
    parameters: Mapping[str, int | float] = {}
    """Of sampling, by the contract's names."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
