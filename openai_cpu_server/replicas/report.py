"""Reports of a replica, requests to route, and the protocol of a link to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import Forecast, HeldUpdate
from openai_cpu_server.contract.request import Priority


@dataclass(frozen=True)
class ReplicaReport:
    state: EngineState
    """State of its engine. While that restarts, only requests that stay with the replica are sent."""
    forecast: Forecast | None = None
    """Forecast, or None before the first; the router then assumes another replica's speed, without work."""
    held: HeldUpdate | None = None


@dataclass(frozen=True)
class RoutedRequest:
    id: str
    priority: Priority
    num_tokens: int
    """Prompt length, plus existing output if it is replayed."""
    blocks: tuple[int, ...] = ()
    """Names of its whole blocks (`contract.replica.block_hashes`)."""
    prefers: str | None = None
    """Replica to stay with while it lives, even while its engine restarts."""
    avoids: frozenset[str] = field(default_factory=frozenset)
    """Replicas to use only as a last resort, because they were lost with this request."""


@dataclass(frozen=True)
class ReplicaChoice:
    replica: str
    cached_tokens: int
    expected_ms: float
    """Expected TTFT."""


class ReplicaLost(Exception): ...


class ReplicaLink(Protocol):
    """Transport of bytes (`replicas.wire`). Belongs to one event loop's thread."""

    def attend(self, lease_holder: str) -> AsyncIterator[bytes]:
        """Yield news until the replica ends the session, or the reader does, with all its requests. Raises
        ReplicaLost."""

    async def tell(self, lease_holder: str, orders: bytes) -> bool:
        """Return False if the replica does not know this lease holder any more. Raises ReplicaLost."""

    async def load_adapter(self, adapter: bytes) -> bytes:
        """Send an encoded `Adapter` and return the encoded `AdapterStatus`. Raises ReplicaLost."""
