"""What a workload hands over: figures by round, goals with a verdict."""

from __future__ import annotations

import enum

import msgspec

from bench.process_tree import TreeUse
from bench.stats import Rounds


class Direction(enum.Enum):
    AT_LEAST = "at least"
    AT_MOST = "at most"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    measured: float
    direction: Direction
    limit: float
    unit: str = ""

    @property
    def is_met(self) -> bool:
        if self.direction is Direction.AT_LEAST:
            return self.measured >= self.limit
        return self.measured <= self.limit


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rounds: Rounds
    unit: str = ""


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sizes: str
    """What was run, in words."""
    goals: tuple[Goal, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    uses: tuple[tuple[str, TreeUse], ...] = ()
    """Label and use of each server, in the order in which they ran."""
    seconds: float = 0.0
    failure: str | None = None
    """Why it could not be measured."""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """What else the numbers depend on."""

    started: str
    model: str
    commit: str
    cpu: str
    num_cpus: int
    memory_bytes: int
    rounds: int
    is_quick: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    circumstances: Circumstances
    load_before: tuple[float, float, float]
    """Load averages of 1, 5 and 15 minutes; above the benchmark's own share they mean company."""
    load_after: tuple[float, float, float]
    results: tuple[WorkloadResult, ...]
