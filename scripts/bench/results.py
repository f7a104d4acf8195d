"""The results of a workload: figures by round, and goals with a verdict."""

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
    """The measurements, of which the median counts; None: one of the servers was not measured."""
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
        """Whether the goal is met; None: unknown."""
        if self.measured is None:
            return None
        if self.direction is Direction.AT_LEAST:
            return self.measured >= self.limit
        return self.measured <= self.limit


def gains(one: Rounds, other: Rounds, better: Direction) -> Rounds:
    """How many times as good one is: 2 means twice as much, or half if less is better."""
    return ratios(one, other) if better is Direction.AT_LEAST else ratios(other, one)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rounds: Rounds
    unit: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of several servers, side by side."""

    what: str
    better: Direction
    """The better direction; AT_LEAST: more is better."""
    unit: str = ""
    servers: dict[str, Rounds]
    """The rounds by label, in the order of the columns, without servers that failed."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """The times that the users of one server saw, in all rounds together."""

    label: str
    ttft_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    """Inter-token latencies."""


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A figure by number of clients."""

    label: str
    points: tuple[tuple[int, Rounds], ...]


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sizes: str
    """The sizes that were run, in words."""
    goals: tuple[Goal, ...] = ()
    lines: tuple[Line, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    curves: tuple[Curve, ...] = ()
    failures: dict[str, str] = {}
    """Why a server could not be measured, or not in full, by label."""
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    uses: tuple[tuple[str, TreeUse], ...] = ()
    """The label and use of each server, in the order in which they ran."""
    seconds: float = 0.0
    failure: str | None = None
    """Why the workload could not be measured."""


class Circumstances(msgspec.Struct, frozen=True, kw_only=True):
    """Further facts on which the numbers depend."""

    started: str
    model: str
    commit: str
    cpu: str
    num_cpus: int
    memory_bytes: int
    rounds: int
    is_quick: bool
    servers: dict[str, str] = {}
    """The command that starts each server, by label;
    `{room}` where workloads differ, names instead of paths."""
    absent: tuple[str, ...] = ()
    """The wanted peers that are not on this machine."""


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
