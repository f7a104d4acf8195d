"""The autoscaling policy as Ray Serve asks it."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    pytest.importorskip("ray.serve.config")

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.replicas.ray.scaling import WaitPolicy, autoscaling_stats, report_of
from openai_cpu_server.replicas.report import ReplicaReport

pytestmark = pytest.mark.slow  # importing Ray takes longer than they do

BUSY = Forecast(token_ms=1.0, wait_ms=ByPriority(9000.0, 9000.0), num_live=ByPriority(9, 0))
IDLE = Forecast(token_ms=1.0)


def context(*forecasts: Forecast) -> SimpleNamespace:
    """What the policy reads of Ray's own: metrics by name and replica, as series of values."""
    replicas = [SimpleNamespace(unique_id=f"r{number}") for number in range(len(forecasts))]
    metrics: dict[str, dict[object, list[SimpleNamespace]]] = {}
    for replica, forecast in zip(replicas, forecasts, strict=True):
        for name, value in autoscaling_stats(EngineState.READY, forecast).items():
            metrics.setdefault(name, {})[_Key(replica)] = [SimpleNamespace(value=value)]
    return SimpleNamespace(raw_metrics=metrics, running_replicas=replicas, target_num_replicas=len(replicas))


class _Key:
    def __init__(self, replica: SimpleNamespace) -> None:
        self.unique_id = replica.unique_id


def policy() -> WaitPolicy:
    return WaitPolicy(
        min_replicas=1, max_replicas=4, target_wait_ms=1000.0, up_after_s=0.0, down_after_s=60.0
    )


def test_what_a_replica_tells_arrives_as_it_was() -> None:
    told = report_of(autoscaling_stats(EngineState.READY, BUSY))
    assert told == ReplicaReport(state=EngineState.READY, forecast=BUSY)
    assert report_of(autoscaling_stats(EngineState.LOADING, None)).state is EngineState.LOADING


def test_more_are_started_where_interactive_work_waits_and_none_where_nothing_does() -> None:
    assert policy()(context(BUSY))[0] == 2
    assert policy()(context(IDLE, IDLE))[0] == 2
