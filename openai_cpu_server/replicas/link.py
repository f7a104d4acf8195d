"""The way from an API process to one engine replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol


class ReplicaLost(Exception):
    """The replica has died, or cannot be reached."""


class Link(Protocol):
    """Carries bytes (`replicas.wire`). Its methods belong to one event loop's thread."""

    def attend(self, lessee: str) -> AsyncIterator[bytes]:
        """News for the API process that calls itself `lessee`, until the replica ends that. Whoever stops
        reading is forgotten there, with all that it has ordered. Raises `ReplicaLost`."""
        ...

    async def tell(self, lessee: str, orders: bytes) -> bool:
        """False: the replica does not know the lessee (any more). Raises `ReplicaLost`."""
        ...

    async def load_adapter(self, adapter: bytes) -> bytes:
        """An `Adapter`; back comes its `AdapterStatus`. Raises `ReplicaLost`."""
        ...
