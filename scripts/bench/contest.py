"""A contest: the same load on every server, with lines, distributions and goals as results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from bench.asking import Trace, first_token_times
from bench.contestants import Contestant, Variant
from bench.failures import described
from bench.results import Curve, Direction, Distribution, Goal, Line, gains
from bench.stats import Rounds

T = TypeVar("T")
R = TypeVar("R")

OURS = Variant.WHOLE.key
_MICROSECONDS = 6


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

    def attempt(self, label: str, what: str, get: Callable[[], R]) -> R | None:
        """Return the result, or None if it fails. Only that contestant fails; the others' figures stay."""
        try:
            return get()
        except Exception as error:
            self.failures.setdefault(label, f"{what}: {described(error)}")
            return None

    def of_ours(self, what: str, get: Callable[[list[T]], tuple[R, ...]]) -> tuple[R, ...]:
        """Return what `get` finds in our server's runs, or () if it was not measured or `get` fails."""
        for who, runs in self.runs.items():
            if who.key == OURS:
                return self.attempt(who.label, what, partial(get, runs)) or ()
        return ()

    def distributions(self, traces: Callable[[T], Sequence[Trace]]) -> tuple[Distribution, ...]:
        return tuple(
            distribution(who.label, [trace for run in runs for trace in traces(run)])
            for who, runs in self.runs.items()
        )

    def label(self, key: str) -> str | None:
        return next((who.label for who in self.runs if who.key == key), None)

    def goal_against(self, key: str, line: Line, what: str, times: float) -> Goal:
        """`times`: factor by which ours should be better."""
        other = self.label(key)
        one, rounds = line.servers.get(self.label(OURS) or ""), line.servers.get(other or "")
        measured = gains(one, rounds, line.better) if one is not None and rounds is not None else None
        return Goal.at_least(_against(what, line.better, other or key), measured, times, "x")

    def goals_against_llama_server(
        self, line: Line, what: str, *, plain: float, best: float
    ) -> tuple[Goal, Goal]:
        """Return the goals against llama-server with its defaults, and with its best flags."""
        return (
            self.goal_against("llama-server", line, what, plain),
            self.goal_against("llama-server-best", line, what, best),
        )

    def own_goal(self, line: Line, what: str, limit: float) -> Goal:
        return Goal(
            what=what,
            rounds=line.servers.get(self.label(OURS) or ""),
            direction=line.better,
            limit=limit,
            unit=line.unit,
        )


def curves(lines: Mapping[int, Line]) -> tuple[Curve, ...]:
    columns = {
        label: tuple((k, line.servers[label]) for k, line in lines.items() if label in line.servers)
        for label in dict.fromkeys(label for line in lines.values() for label in line.servers)
    }
    return tuple(Curve(label=label, points=points) for label, points in columns.items())


def distribution(label: str, traces: Sequence[Trace]) -> Distribution:
    return Distribution(
        label=label,
        ttft_s=tuple(round(s, _MICROSECONDS) for s in first_token_times(traces)),
        gaps_s=tuple(round(s, _MICROSECONDS) for trace in traces for s in trace.gaps_s),
    )


def _against(what: str, better: Direction, other: str) -> str:
    how = "against" if better is Direction.AT_LEAST else "how many times as short as with"
    return f"{what}, {how} '{other}'"
