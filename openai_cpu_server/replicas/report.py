"""What is known of a replica, what it is asked for, and the protocol of the way to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import Forecast, HeldUpdate
from openai_cpu_server.contract.request import Priority


@dataclass(frozen=True)
class ReplicaReport:
    """What a replica tells of itself."""

    state: EngineState
    """Its engine's. While that restarts, only requests that stay with it are sent."""
    forecast: Forecast | None = None
    """None: its engine has told nothing yet. It is then taken to be as the others are, without work."""
    held: HeldUpdate | None = None


@dataclass(frozen=True)
class RoutedRequest:
    """A request for which a replica is to be chosen."""

    id: str
    priority: Priority
    num_tokens: int
    """The length of its prompt, with what it has produced already if it is replayed."""
    blocks: tuple[int, ...] = ()
    """The names of their whole blocks (`contract.replica.block_hashes`)."""
    prefers: str | None = None
    """The replica that it stays with as long as that lives, be it that its engine restarts."""
    avoids: frozenset[str] = field(default_factory=frozenset)
    """Replicas that are chosen only where there is no other: it was with them when they were lost."""


@dataclass(frozen=True)
class ReplicaChoice:
    replica: str
    cached_tokens: int
    """How many tokens of the prompt it is thought to hold."""
    expected_ms: float
    """When the first token is expected."""


class ReplicaLost(Exception):
    """The replica has died, or cannot be reached."""


class ReplicaLink(Protocol):
    """Carries bytes (`replicas.wire`). Its methods belong to one event loop's thread."""

    def attend(self, lease_holder: str) -> AsyncIterator[bytes]:
        """News for the API process that calls itself so, until the replica ends that. Whoever stops reading
        is forgotten there, with all that it has ordered. Raises `ReplicaLost`."""
        ...

    async def tell(self, lease_holder: str, orders: bytes) -> bool:
        """False: the replica does not know this lease holder (any more). Raises `ReplicaLost`."""
        ...

    async def load_adapter(self, adapter: bytes) -> bytes:
        """An `Adapter`; back comes its `AdapterStatus`. Raises `ReplicaLost`."""
        ...
