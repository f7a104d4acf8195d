"""Number of replicas, decided from their load and the waits of interactive work."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import BY_DEFAULT
from openai_cpu_server.contract.replica import Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.router import ReplicaReport

_PRESENT = (EngineState.ASLEEP, EngineState.LOADING, EngineState.READY, EngineState.RESTARTING)


@dataclass(frozen=True)
class AutoscaleOptions:
    min_replicas: int = 1
    """0: all replicas end after `idle_after_s` without work."""
    max_replicas: int = 1
    target_wait_ms: float = 1000.0
    """Target for interactive work's wait until its prefill begins, at the better of two replicas."""
    target_load: float = 0.7
    """Largest share of the replicas' time for interactive work at full steps (docs/simulation.md)."""
    calm: float = 0.8
    """Share of both targets below which replicas end."""
    up_after_s: float = 15.0
    down_after_s: float = 300.0
    batch_within_s: float = 3600.0
    """Time for the waiting batch work, within `batch_floor`."""
    batch_floor: float = BY_DEFAULT.batch_floor
    """Largest share of the replicas for batch work."""
    idle_after_s: float = 600.0


@dataclass(frozen=True)
class ReplicaFleet:
    num_present: int
    wait_ms: float
    """Wait of a new interactive request at the better of two serving replicas, as a router draws them."""
    load: float
    """Replicas that the current interactive work occupies."""
    batch_ms: float
    """Time for all waiting batch work on one replica."""
    num_live: int
    """Requests, also those without a replica."""


class FleetMonitor:
    def __init__(self, window_s: float = 30.0) -> None:
        self._window_s = window_s
        self._work: dict[str, tuple[float, float]] = {}
        """Time of the last report, and interactive milliseconds until then, by replica."""
        self._loads: dict[str, float] = {}

    def look(
        self, reports: Mapping[str, ReplicaReport], now_s: float, *, num_unplaced: int = 0
    ) -> ReplicaFleet:
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


@dataclass(eq=False)
class Autoscaler:
    options: AutoscaleOptions
    _needs: deque[tuple[float, int, int]] = field(default_factory=deque)
    """Time, needed replicas, and sufficient replicas with hysteresis."""
    _busy_s: float | None = None

    def decide(self, fleet: ReplicaFleet, now_s: float) -> int:
        """Return the wanted number, loading replicas included. Call it every few seconds."""
        options, present = self.options, fleet.num_present
        if self._busy_s is None or fleet.num_live:
            self._busy_s = now_s
        self._needs.append((now_s, self._needed(fleet), self._sufficient(fleet)))
        # One older figure is the proof that observation has lasted this long.
        before_s = now_s - max(options.up_after_s, options.down_after_s)
        while len(self._needs) > 1 and self._needs[1][0] <= before_s:
            self._needs.popleft()
        if fleet.num_live and not present:
            return self._bounded(1)
        if not fleet.num_live and now_s - self._busy_s >= options.idle_after_s:
            return options.min_replicas
        more, fewer = (
            self._recent_needs(now_s, options.up_after_s),
            self._recent_needs(now_s, options.down_after_s),
        )
        if more and (needed := min(need for _, need, _ in more)) > present:
            return self._bounded(needed)
        if fewer and (enough := max(enough for _, _, enough in fewer)) < present:
            return self._bounded(enough)
        return self._bounded(present)

    def _recent_needs(self, now_s: float, seconds: float) -> list[tuple[float, int, int]]:
        if self._needs[0][0] > now_s - seconds:
            return []
        return list(takewhile(lambda need: need[0] >= now_s - seconds, reversed(self._needs)))

    def _needed(self, fleet: ReplicaFleet) -> int:
        """At most doubles at once, because the current wait may be short."""
        options, present = self.options, fleet.num_present
        by_load = self._for_load(fleet, options.target_load)
        by_wait = math.ceil(present * fleet.wait_ms / options.target_wait_ms)
        return min(max(by_load, by_wait if by_wait > present else 0), 2 * max(1, present))

    def _sufficient(self, fleet: ReplicaFleet) -> int:
        options = self.options
        by_load = self._for_load(fleet, options.calm * options.target_load)
        by_wait = math.ceil(fleet.num_present * fleet.wait_ms / (options.calm * options.target_wait_ms))
        return max(by_load, by_wait, 1)

    def _for_load(self, fleet: ReplicaFleet, target: float) -> int:
        interactive = fleet.load / target
        wanted_for_batch = fleet.batch_ms / 1000 / self.options.batch_within_s
        floor = self.options.batch_floor
        most_for_batch = interactive * floor / (1 - floor)
        return math.ceil(interactive + min(wanted_for_batch, most_for_batch) - 1e-9)

    def _bounded(self, num: int) -> int:
        return min(max(num, self.options.min_replicas), self.options.max_replicas)


def _better_of_two(waits_ms: list[float]) -> float:
    num = len(waits_ms)
    if num < 2:
        return sum(waits_ms)
    pairs = num * (num - 1) / 2
    return sum(wait * (num - 1 - rank) for rank, wait in enumerate(sorted(waits_ms))) / pairs
