"""Autoscaling by the waits of interactive work. Ray pickles this module by value, so it must import what it
needs of ours."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from ray.serve.config import AutoscalingContext

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions, Autoscaler, FleetMonitor
from openai_cpu_server.replicas.router import ReplicaReport


def autoscaling_stats(state: EngineState, forecast: Forecast | None) -> dict[str, float]:
    """Return a replica's report as numbers, because Ray carries nothing else."""
    stats = {"ocs_state": float(list(EngineState).index(state))}
    if forecast is None:
        return stats
    figures = {"wait_ms": forecast.wait_ms, "work_ms": forecast.work_ms, "live": forecast.num_live}
    by_priority = {f"ocs_{name}_{one.label}": figures[name][one] for name in figures for one in Priority}
    return stats | {"ocs_token_ms": forecast.token_ms} | by_priority


def report_of(stats: dict[str, float]) -> ReplicaReport:
    state = list(EngineState)[int(stats.get("ocs_state", 0))]
    if "ocs_token_ms" not in stats:
        return ReplicaReport(state)
    forecast = Forecast(
        token_ms=stats["ocs_token_ms"],
        wait_ms=_by_priority(stats, "wait_ms"),
        work_ms=_by_priority(stats, "work_ms"),
        num_live=_by_priority(stats, "live"),
    )
    return ReplicaReport(state, forecast)


def _by_priority(stats: dict[str, float], name: str) -> ByPriority:
    return ByPriority(*(stats[f"ocs_{name}_{one.label}"] for one in Priority))


class WaitPolicy:
    def __init__(self, **options: Any) -> None:
        self._autoscaler = Autoscaler(AutoscaleOptions(**options))
        self._monitor = FleetMonitor()

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        now_s = time.monotonic()
        stats: dict[str, dict[str, float]] = defaultdict(dict)
        for name, metric in (ctx.raw_metrics or {}).items():
            for replica, series in metric.items():
                if series:
                    stats[replica.unique_id][name] = series[-1].value
        by_replica = {replica: report_of(values) for replica, values in stats.items()}
        starting = ReplicaReport(state=EngineState.LOADING)
        reports = {
            name: by_replica.get(name, starting)
            for name in (replica.unique_id for replica in ctx.running_replicas)
        }
        for number in range(ctx.target_num_replicas - len(reports)):
            reports[f"starting {number}"] = starting
        return self._autoscaler.decide(self._monitor.look(reports, now_s), now_s), {}
