"""Ways of choosing a replica, to compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Protocol

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.replicas.router import ReplicaChoice, ReplicaReport, ReplicaRouter, RoutedRequest


class Routing(Protocol):
    """Protocol of `ReplicaRouter`."""

    def reported(self, replica: str, report: ReplicaReport, *, made_s: float, now_s: float) -> None: ...

    def gone(self, replica: str) -> None: ...

    def choose(self, wanted: RoutedRequest, *, now_s: float) -> ReplicaChoice | None: ...

    def sent(self, wanted: RoutedRequest, choice: ReplicaChoice, now_s: float) -> None: ...

    def began(self, name: str) -> None: ...

    def ended(self, name: str) -> None: ...


class _Known:
    def __init__(self) -> None:
        self._ready: list[str] = []
        self._num_live: Counter[str] = Counter()
        self._places: dict[str, str] = {}

    def reported(self, replica: str, report: ReplicaReport, *, made_s: float, now_s: float) -> None:
        is_ready = report.state is EngineState.READY
        if is_ready and replica not in self._num_live:
            self._ready.append(replica)
            self._num_live[replica] = 0
        elif not is_ready:
            self.gone(replica)

    def gone(self, replica: str) -> None:
        if replica in self._num_live:
            self._ready.remove(replica)
            del self._num_live[replica]

    def sent(self, wanted: RoutedRequest, choice: ReplicaChoice, now_s: float) -> None:
        self._places[wanted.id] = choice.replica
        self._num_live[choice.replica] += 1

    def began(self, name: str) -> None:
        pass

    def ended(self, name: str) -> None:
        replica = self._places.pop(name, None)
        if replica is not None and replica in self._num_live:
            self._num_live[replica] -= 1


class RoundRobin(_Known):
    """Routers begin at different places, because they would otherwise all go the same way."""

    def __init__(self, begin: float) -> None:
        """`begin`: 0 is the first replica, 1 would be behind the last."""
        super().__init__()
        self._begin = begin
        self._next = 0

    def choose(self, wanted: RoutedRequest, *, now_s: float) -> ReplicaChoice | None:
        if not self._ready:
            return None
        self._next += 1
        place = self._next + int(self._begin * len(self._ready))
        return ReplicaChoice(self._ready[place % len(self._ready)], 0, 0.0)


class LeastLoaded(_Known):
    """Chooses the replica with the fewest requests of this router, at random among equals."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def choose(self, wanted: RoutedRequest, *, now_s: float) -> ReplicaChoice | None:
        if not self._ready:
            return None
        name = min(self._ready, key=lambda one: (self._num_live[one], self._random.random()))
        return ReplicaChoice(name, 0, 0.0)


ROUTINGS: Sequence[str] = ("round robin", "least loaded", "ours")


def routing(name: str, *, seed: int, number: int, num_routers: int) -> Routing:
    """Return the router of this number, one of `num_routers`."""
    match name:
        case "round robin":
            return RoundRobin(number / num_routers)
        case "least loaded":
            return LeastLoaded(Random(seed + number))
        case "ours":
            return ReplicaRouter(Random(seed + number), num_routers=num_routers)
    raise ValueError(name)
