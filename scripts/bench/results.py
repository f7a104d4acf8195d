"""Results of workloads: figures by round, goals and contests."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import msgspec

from bench.servers import Contestant, TreeUse, Variant
from bench.traffic import described

T = TypeVar("T")
R = TypeVar("R")

OURS = Variant.WHOLE.key


def percentile(values: Sequence[float], percent: float) -> float:
    """Interpolate linearly between nearest ranks. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


class Rounds(msgspec.Struct, frozen=True):
    values: tuple[float, ...]

    @classmethod
    def of(cls, runs: Iterable[T], figure: Callable[[T], float]) -> Rounds:
        return cls(tuple(float(figure(run)) for run in runs))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median, or 0 for a median of 0."""
        return (max(self.values) - min(self.values)) / abs(self.median) if self.median else 0.0


def ratios(above: Rounds, below: Rounds) -> Rounds:
    """Return ratios by round, because a disturbance affects both, or of the medians if the rounds differ in
    number. A ratio to 0 is infinite."""
    if len(above.values) != len(below.values):
        above, below = Rounds((above.median,)), Rounds((below.median,))
    pairs = zip(above.values, below.values, strict=True)
    return Rounds(tuple(one / other if other else math.inf for one, other in pairs))


class Direction(enum.Enum):
    AT_LEAST = "at least"
    AT_MOST = "at most"


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    rounds: Rounds | None
    """Measurements, of which the median counts, or None if a server was not measured."""
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
    def is_met(self) -> bool | None:
        if self.rounds is None:
            return None
        if self.direction is Direction.AT_LEAST:
            return self.rounds.median >= self.limit
        return self.rounds.median <= self.limit


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
    """Figures by label, in the order of the columns, without failed servers."""


class WorkloadResult(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sizes: str
    goals: tuple[Goal, ...] = ()
    lines: tuple[Line, ...] = ()
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
    """Commands by label, with `{room}` where workloads differ, and names instead of paths."""
    absent: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    circumstances: Circumstances
    load_before: tuple[float, float, float]
    """Averages of 1, 5 and 15 minutes, which show other users of the machine."""
    load_after: tuple[float, float, float]
    results: tuple[WorkloadResult, ...]

    @property
    def has_failures(self) -> bool:
        return any(result.failure or result.failures for result in self.results)

    @property
    def lines(self) -> tuple[Line, ...]:
        return tuple(line for result in self.results for line in result.lines)


@dataclass(frozen=True)
class Contest(Generic[T]):
    runs: dict[Contestant, list[T]]
    failures: dict[str, str] = field(default_factory=dict)

    def line(self, what: str, unit: str, better: Direction, figure: Callable[[T], float]) -> Line:
        servers: dict[str, Rounds] = {}
        for who, runs in self.runs.items():
            rounds = self.attempt(who.label, what, partial(Rounds.of, runs, figure))
            if rounds is not None and rounds.values:
                servers[who.label] = rounds
        return Line(what=what, unit=unit, better=better, servers=servers)

    def seconds(self, figures: dict[str, Callable[[T], float]]) -> tuple[Line, ...]:
        """Return lines of times, of which less is better."""
        return tuple(self.line(what, "s", Direction.AT_MOST, figure) for what, figure in figures.items())

    def those(self, condition: Callable[[Contestant], bool]) -> Contest[T]:
        return replace(self, runs={who: runs for who, runs in self.runs.items() if condition(who)})

    def attempt(self, label: str, what: str, get: Callable[[], R]) -> R | None:
        """Return the result, or None. A failure is that of one contestant."""
        try:
            return get()
        except Exception as error:
            self.failures.setdefault(label, f"{what}: {described(error)}")
            return None

    def of_ours(self, what: str, get: Callable[[list[T]], tuple[R, ...]]) -> tuple[R, ...]:
        """Return results of `get` for our runs, or () if there are none or `get` fails."""
        for who, runs in self.runs.items():
            if who.key == OURS:
                return self.attempt(who.label, what, partial(get, runs)) or ()
        return ()

    def label(self, key: str) -> str | None:
        return next((who.label for who in self.runs if who.key == key), None)

    def goal_against(self, key: str, line: Line, what: str, times: float) -> Goal:
        """`times`: factor by which ours should be better."""
        label, is_more = self.label(key), line.better is Direction.AT_LEAST
        one, other = line.servers.get(self.label(OURS) or ""), line.servers.get(label or "")
        measured = gains(one, other, line.better) if one is not None and other is not None else None
        how = "against" if is_more else "how many times as short as with"
        return Goal.at_least(f"{what}, {how} '{label or key}'", measured, times, "x")

    def goals_against_llama_server(
        self, line: Line, what: str, plain: float, best: float
    ) -> tuple[Goal, Goal]:
        """Return the goals against llama-server's defaults and its best flags."""
        return (
            self.goal_against("llama-server", line, what, plain),
            self.goal_against("llama-server-best", line, what, best),
        )

    def own_goal(self, line: Line, what: str, limit: float) -> Goal:
        rounds = line.servers.get(self.label(OURS) or "")
        return Goal(what=what, rounds=rounds, direction=line.better, limit=limit, unit=line.unit)
