"""The request router and the autoscaling policy as Ray Serve calls them."""

from __future__ import annotations

import asyncio
import warnings
from types import SimpleNamespace

import pytest

from openai_cpu_server.replicas.ray.surroundings import NoSuchReplica, ReplicaAddress

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    pytest.importorskip("ray.serve.request_router")

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.replicas.ray.request_router import EngineRequestRouter
from openai_cpu_server.replicas.ray.scaling import WaitPolicy, autoscaling_stats, report_of
from openai_cpu_server.replicas.router import ReplicaReport

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # importing Ray takes longer than the tests


class Router(EngineRequestRouter):
    def __init__(self, *names: str) -> None:
        self._replicas = {ReplicaKey(name): None for name in names}


class ReplicaKey(SimpleNamespace):
    def __init__(self, name: str) -> None:
        super().__init__(unique_id=name)

    def __hash__(self) -> int:
        return hash(self.unique_id)


def pending(to: str) -> SimpleNamespace:
    return SimpleNamespace(args=[to], future=asyncio.get_running_loop().create_future())


def replicas(*names: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(replica_id=ReplicaKey(name)) for name in names]


async def test_a_call_goes_to_its_address_and_its_sender_gets_the_names_of_all_replicas() -> None:
    names: list[frozenset[str]] = []
    router, (one, two) = Router("one", "two"), replicas("one", "two")
    assert await router.choose_replicas([one, two], pending(ReplicaAddress("two", names.append))) == [[two]]
    assert names == [{"one", "two"}]


async def test_a_call_to_a_replica_that_is_gone_fails_at_once() -> None:
    router, call = Router("one"), pending(ReplicaAddress("gone", lambda _: None))
    assert (await router.choose_replicas(replicas("one"), call))[0]
    with pytest.raises(NoSuchReplica):
        await call.future


async def test_a_call_without_an_address_goes_to_any_replica() -> None:
    assert len((await Router("one").choose_replicas(replicas("one"), pending("")))[0]) == 1


BUSY = Forecast(token_ms=1.0, wait_ms=ByPriority(9000.0, 9000.0), num_live=ByPriority(9, 0))
IDLE = Forecast(token_ms=1.0)


def context(*forecasts: Forecast) -> SimpleNamespace:
    """Return Ray's context for the policy: metrics by name and replica, as series of values."""
    keys = [ReplicaKey(f"r{number}") for number in range(len(forecasts))]
    metrics: dict[str, dict[object, list[SimpleNamespace]]] = {}
    for key, forecast in zip(keys, forecasts, strict=True):
        for name, value in autoscaling_stats(EngineState.READY, forecast).items():
            metrics.setdefault(name, {})[key] = [SimpleNamespace(value=value)]
    return SimpleNamespace(raw_metrics=metrics, running_replicas=keys, target_num_replicas=len(keys))


def policy() -> WaitPolicy:
    return WaitPolicy(
        min_replicas=1, max_replicas=4, target_wait_ms=1000.0, up_after_s=0.0, down_after_s=60.0
    )


def test_the_report_of_a_replica_arrives_unchanged() -> None:
    report = report_of(autoscaling_stats(EngineState.READY, BUSY))
    assert report == ReplicaReport(state=EngineState.READY, forecast=BUSY)
    assert report_of(autoscaling_stats(EngineState.LOADING, None)).state is EngineState.LOADING


def test_replicas_are_added_only_where_interactive_work_waits() -> None:
    assert policy()(context(BUSY))[0] == 2
    assert policy()(context(IDLE, IDLE))[0] == 2
