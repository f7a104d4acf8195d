"""Results of a workload: figures by round, and goals with a verdict."""

from __future__ import annotations

import enum

import msgspec

from bench.process_tree import TreeUse
from bench.stats import Rounds, ratios


class Direction(enum.Enum):
    AT_LEAST = "at least"
    AT_MOST = "at most"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rounds: Rounds | None
    """Measurements, of which the median counts, or None if one of the servers was not measured."""
    direction: Direction
    limit: float
    unit: str = ""

    @classmethod
    def at_least(cls, what: str, rounds: Rounds | None, limit: float, unit: str = "") -> Goal:
        return cls(what=what, rounds=rounds, direction=Direction.AT_LEAST, limit=limit, unit=unit)

    @classmethod
    def at_most(cls, what: str, rounds: Rounds | None, limit: float, unit: str = "") -> Goal:
        return cls(what=what, rounds=rounds, direction=Direction.AT_MOST, limit=limit, unit=unit)

    @property
    def measured(self) -> float | None:
        return None if self.rounds is None else self.rounds.median

    @property
    def is_met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.direction is Direction.AT_LEAST:
            return self.measured >= self.limit
        return self.measured <= self.limit


def gains(one: Rounds, other: Rounds, better: Direction) -> Rounds:
    """Return factors: 2 means twice as much, or half if less is better."""
    return ratios(one, other) if better is Direction.AT_LEAST else ratios(other, one)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rounds: Rounds
    unit: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    better: Direction
    """AT_LEAST: more is better."""
    unit: str = ""
    servers: dict[str, Rounds]
    """By label, in the order of the columns, without servers that failed."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    ttft_s: tuple[float, ...]
    gaps_s: tuple[float, ...]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    points: tuple[tuple[int, Rounds], ...]


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sizes: str
    goals: tuple[Goal, ...] = ()
    lines: tuple[Line, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    curves: tuple[Curve, ...] = ()
    failures: dict[str, str] = {}
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    uses: tuple[tuple[str, TreeUse], ...] = ()
    seconds: float = 0.0
    failure: str | None = None


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    started: str
    model: str
    commit: str
    cpu: str
    num_cpus: int
    memory_bytes: int
    rounds: int
    is_quick: bool
    servers: dict[str, str] = {}
    """Command of each server by label, with `{room}` where workloads differ, and names instead of paths."""
    absent: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    circumstances: Circumstances
    load_before: tuple[float, float, float]
    """Load averages of 1, 5 and 15 minutes. Above the benchmark's own share, others used the machine."""
    load_after: tuple[float, float, float]
    results: tuple[WorkloadResult, ...]

    @property
    def has_failures(self) -> bool:
        return any(result.failure or result.failures for result in self.results)

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(line for result in self.results for line in result.lines)
