"""LoRA adapters: small changes of a model's weights that a request can ask for."""

from __future__ import annotations

import enum

import msgspec


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter to load. A file with other content makes another adapter, even if it has the same name."""

    name: str
    """What requests call it."""
    path: str
    """A GGUF file."""
    digest: str
    """SHA-256 of the file, in hex. What the engine finds there must agree."""
    scale: float = 1.0
    """It multiplies the adapter's own scale (alpha / rank)."""

    @property
    def key(self) -> str:
        """What the engine and its caches know it by: equal for equal names, contents and scales only."""
        return f"{self.name}@{self.digest[:32]}@{self.scale!r}"


def adapter_name(key: str) -> str:
    """What requests call the adapter of this key."""
    return key.rsplit("@", 2)[0]


class LoadedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an adapter that the engine has loaded."""

    key: str
    rank: int
    """The largest of its tensors."""
    num_tensors: int
    """The tensors of the model that it changes."""
    size_bytes: int
    """The memory that it takes."""


class RefusedAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that the engine could not load."""

    key: str
    reason: str
    """One sentence."""


class AdapterState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    """It was refused; `reason` says why."""


class AdapterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What requests may ask for by `adapter.name`, or why not."""

    adapter: Adapter
    state: AdapterState
    loaded: LoadedAdapter | None = None
    """Set when it is ready."""
    reason: str | None = None
