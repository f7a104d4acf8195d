"""A contest: the same load on every server, and what comes of it: lines, distributions, goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from bench.asking import Trace, first_token_times
from bench.contestants import Contestant, Variant
from bench.limit.work import LoopRun
from bench.results import Direction, Distribution, Goal, Line, gain
from bench.stats import Rounds

T = TypeVar("T")

LIMIT = "limit"
"""The bare loop's label."""
OURS = Variant.WHOLE.key
_MICROSECONDS = 6


@dataclass(frozen=True)
class Contest(Generic[T]):
    """What was measured, by contestant and round."""

    runs: dict[Contestant, list[T]]
    failures: dict[str, str] = field(default_factory=dict)
    """By label: why there are no rounds."""
    loops: list[list[LoopRun]] = field(default_factory=list)
    """By round: how the bare loop got through each work; [] if it was not measured."""
    plans: dict[str, None] = field(default_factory=dict)
    """How the bare loop's steps were put together, in words, in order."""

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"limit: {'; '.join(self.plans)}",) if self.plans else ()

    def line(
        self,
        what: str,
        unit: str,
        better: Direction,
        figure: Callable[[T], float],
        limit: Callable[[list[LoopRun]], float | None] | None = None,
    ) -> Line:
        """`limit`: the bare loop's figure in a round, if it has one."""
        servers = {who.label: Rounds(tuple(map(figure, runs))) for who, runs in self.runs.items()}
        return Line(what=what, unit=unit, better=better, servers=servers, limit=self._limit(limit))

    def _limit(self, figure: Callable[[list[LoopRun]], float | None] | None) -> Rounds | None:
        values = [figure(runs) for runs in self.loops] if figure is not None else []
        known = tuple(value for value in values if value is not None)
        return Rounds(known) if known else None

    def distributions(self, traces: Callable[[T], Sequence[Trace]]) -> tuple[Distribution, ...]:
        return tuple(
            distribution(who.label, [trace for run in runs for trace in traces(run)])
            for who, runs in self.runs.items()
        )

    def label(self, key: str) -> str | None:
        """None: that one is not among those who were measured."""
        return next((who.label for who in self.runs if who.key == key), None)

    def goal_against(self, key: str, line: Line, what: str, times: float) -> Goal:
        """To be so many times as good as that server."""
        one, other = self.label(OURS), self.label(key)
        measured = None
        if one is not None and other is not None:
            measured = gain(line.servers[one], line.servers[other], line.better)
        return Goal(
            what=_against(what, line.better, other or key),
            measured=measured,
            direction=Direction.AT_LEAST,
            limit=times,
            unit="x",
        )

    def goals_against_llama_server(
        self, line: Line, what: str, *, plain: float, best: float
    ) -> tuple[Goal, Goal]:
        """With its defaults, and with its best flags."""
        return (
            self.goal_against("llama-server", line, what, plain),
            self.goal_against("llama-server-best", line, what, best),
        )

    def goal_of_limit(self, line: Line, what: str, percent: float) -> Goal:
        """To reach that share of what the machine can do."""
        one = self.label(OURS)
        share = line.share_of_limit(one) if one is not None else None
        return Goal(
            what=f"{what}, of the bare loop over llama_decode",
            measured=None if share is None else 100 * share,
            direction=Direction.AT_LEAST,
            limit=percent,
            unit="%",
        )


def distribution(label: str, traces: Sequence[Trace]) -> Distribution:
    return Distribution(
        label=label,
        ttft_s=tuple(round(s, _MICROSECONDS) for s in first_token_times(traces)),
        gaps_s=tuple(round(s, _MICROSECONDS) for trace in traces for s in trace.gaps_s),
    )


def _against(what: str, better: Direction, other: str) -> str:
    how = "against" if better is Direction.AT_LEAST else "how many times as short as with"
    return f"{what}, {how} '{other}'"
