"""How many replicas there should be, from what they tell of interactive work's wait and of their load."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.scheduling import BY_DEFAULT
from openai_cpu_server.replicas.report import ReplicaReport

_PRESENT = (EngineState.ASLEEP, EngineState.LOADING, EngineState.READY, EngineState.RESTARTING)
"""States of replicas that serve, or soon will."""


@dataclass(frozen=True)
class AutoscaleOptions:
    min_replicas: int = 1
    """0: without any work for `idle_after_s` all are ended."""
    max_replicas: int = 1
    target_wait_ms: float = 1000.0
    """What interactive work is to wait until its prompt is begun, at the better of two replicas."""
    target_load: float = 0.7
    """The share of the replicas' time that interactive work is to take at most, were its steps full.

    `scripts/simulate.py` shows what first tokens then wait for each other: docs/simulation.md.
    """
    calm: float = 0.8
    """Replicas are ended only where those that stay keep below this share of both targets."""
    up_after_s: float = 15.0
    """So long more replicas must be needed without a pause before they are started."""
    down_after_s: float = 300.0
    """So long fewer must have sufficed without a pause before some are ended."""
    batch_within_s: float = 3600.0
    """The time in which the batch work that waits is to be done, as far as `batch_floor` goes."""
    batch_floor: float = BY_DEFAULT.batch_floor
    """The share of the replicas that may be there for batch work's sake."""
    idle_after_s: float = 600.0

    def __post_init__(self) -> None:
        assert 0 <= self.min_replicas <= self.max_replicas
        assert self.max_replicas > 0
        assert self.target_wait_ms > 0
        assert 0 < self.target_load <= 1
        assert 0 < self.calm <= 1
        assert 0 <= self.batch_floor < 1


@dataclass(frozen=True)
class ReplicaFleet:
    """All replicas of a model at one moment."""

    num_present: int
    """They serve, or load."""
    wait_ms: float
    """What an interactive newcomer waits at the better of two replicas that serve, as a router draws them."""
    load: float
    """How many replicas the interactive work takes that is done now."""
    batch_ms: float
    """The time that one replica would need for all batch work that waits."""
    num_live: int
    """Requests that run or wait, with those for which there is no replica."""


class FleetWatch:
    """Makes fleets of what the replicas report. It keeps what they had done before, to see how fast they
    work."""

    def __init__(self, window_s: float = 30.0) -> None:
        """`window_s`: loads are means over about this time."""
        self._window_s = window_s
        self._work: dict[str, tuple[float, float]] = {}
        """By replica: when it was looked at, and the interactive work that it had done until then."""
        self._loads: dict[str, float] = {}

    def look(
        self, reports: Mapping[str, ReplicaReport], now_s: float, *, num_unplaced: int = 0
    ) -> ReplicaFleet:
        """`num_unplaced`: requests that wait for a replica to come."""
        for gone in self._work.keys() - reports.keys():
            del self._work[gone], self._loads[gone]
        serving = [one.forecast for one in reports.values() if one.state is EngineState.READY]
        forecasts = [forecast for forecast in serving if forecast is not None]
        for name, report in reports.items():
            if report.forecast is not None:
                self._follow(name, report.forecast, now_s)
        return ReplicaFleet(
            num_present=sum(report.state in _PRESENT for report in reports.values()),
            wait_ms=_better_of_two([one.wait_ms[Priority.INTERACTIVE] for one in forecasts]),
            load=sum(self._loads.values()),
            batch_ms=sum(max(0.0, one.wait_ms.batch - one.wait_ms.interactive) for one in forecasts),
            num_live=num_unplaced + sum(int(sum(forecast.num_live)) for forecast in forecasts),
        )

    def _follow(self, name: str, forecast: Forecast, now_s: float) -> None:
        work_ms = forecast.work_ms[Priority.INTERACTIVE]
        before_s, before_ms = self._work.get(name, (now_s, work_ms))
        self._work[name] = (now_s, work_ms)
        load = self._loads.setdefault(name, 0.0)
        if now_s > before_s:
            # A process that is new has done nothing before.
            done_ms = work_ms - before_ms if work_ms >= before_ms else work_ms
            weight = 1 - math.exp(-(now_s - before_s) / self._window_s)
            self._loads[name] = load + weight * (done_ms / 1000 / (now_s - before_s) - load)


class Autoscaler:
    """Decides how many replicas there should be. It must be asked regularly, every few seconds."""

    def __init__(self, options: AutoscaleOptions) -> None:
        self._options = options
        self._needs: deque[tuple[float, int, int]] = deque()
        """When it was asked, how many were needed, and how many would have sufficed, with hysteresis."""
        self._busy_s: float | None = None
        """When there was work last; None: it was not asked yet."""

    def decide(self, fleet: ReplicaFleet, now_s: float) -> int:
        """The number of replicas that should be present, those that load included."""
        options, present = self._options, fleet.num_present
        if self._busy_s is None or fleet.num_live:
            self._busy_s = now_s
        self._needs.append((now_s, self._needed(fleet), self._sufficient(fleet)))
        self._forget(now_s - max(options.up_after_s, options.down_after_s))
        if fleet.num_live and not present:
            return self._bounded(1)
        if not fleet.num_live and now_s - self._busy_s >= options.idle_after_s:
            return options.min_replicas
        more, fewer = self._lately(now_s, options.up_after_s), self._lately(now_s, options.down_after_s)
        if more and (needed := min(need for _, need, _ in more)) > present:
            return self._bounded(needed)
        if fewer and (enough := max(enough for _, _, enough in fewer)) < present:
            return self._bounded(enough)
        return self._bounded(present)

    def _forget(self, before_s: float) -> None:
        """Forget what was needed longer ago; one older figure shows that it was asked for so long."""
        while len(self._needs) > 1 and self._needs[1][0] <= before_s:
            self._needs.popleft()

    def _lately(self, now_s: float, seconds: float) -> list[tuple[float, int, int]]:
        """What was needed in these last seconds; [] if it was not asked for so long yet."""
        if self._needs[0][0] > now_s - seconds:
            return []
        return list(takewhile(lambda need: need[0] >= now_s - seconds, reversed(self._needs)))

    def _needed(self, fleet: ReplicaFleet) -> int:
        """How many are needed for the targets. Not more than twice as many at once: what they wait for now
        may be short."""
        options, present = self._options, fleet.num_present
        by_load = self._for_load(fleet, options.target_load)
        by_wait = math.ceil(present * fleet.wait_ms / options.target_wait_ms)
        return min(max(by_load, by_wait if by_wait > present else 0), 2 * max(1, present))

    def _sufficient(self, fleet: ReplicaFleet) -> int:
        """How many would keep clearly below the targets."""
        options = self._options
        by_load = self._for_load(fleet, options.calm * options.target_load)
        by_wait = math.ceil(fleet.num_present * fleet.wait_ms / (options.calm * options.target_wait_ms))
        return max(by_load, by_wait, 1)

    def _for_load(self, fleet: ReplicaFleet, target: float) -> int:
        """Replicas for the interactive load, and of batch work for as much as its floor is of all."""
        interactive = fleet.load / target
        wanted_for_batch = fleet.batch_ms / 1000 / self._options.batch_within_s
        floor = self._options.batch_floor
        most_for_batch = interactive * floor / (1 - floor)
        return math.ceil(interactive + min(wanted_for_batch, most_for_batch) - 1e-9)

    def _bounded(self, num: int) -> int:
        return min(max(num, self._options.min_replicas), self._options.max_replicas)


def _better_of_two(waits_ms: list[float]) -> float:
    """The mean of the shorter wait, over all pairs; that of a single one, 0 of none."""
    num = len(waits_ms)
    if num < 2:
        return sum(waits_ms)
    pairs = num * (num - 1) / 2
    return sum(wait * (num - 1 - rank) for rank, wait in enumerate(sorted(waits_ms))) / pairs
