"""Number of replicas: targets, hysteresis, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.replica import ByPriority, Forecast
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions, Autoscaler, FleetMonitor, ReplicaFleet
from openai_cpu_server.replicas.router import ReplicaReport

_OPTIONS = AutoscaleOptions(
    min_replicas=1, max_replicas=10, target_wait_ms=1000, up_after_s=5, down_after_s=60, idle_after_s=100
)


def fleet(
    present: int, *, wait_ms: float = 0.0, load: float = 0.0, batch_ms: float = 0.0, live: int = 1
) -> ReplicaFleet:
    return ReplicaFleet(num_present=present, wait_ms=wait_ms, load=load, batch_ms=batch_ms, num_live=live)


def decisions(scaler: Autoscaler, one: ReplicaFleet, seconds: int, begin_s: int = 0) -> list[int]:
    return [scaler.decide(one, begin_s + now_s) for now_s in range(seconds)]


def test_a_long_wait_over_the_target_adds_replicas_and_a_short_one_does_not() -> None:
    assert decisions(Autoscaler(_OPTIONS), fleet(2, wait_ms=1400), 8) == [2, 2, 2, 2, 2, 3, 3, 3]
    scaler = Autoscaler(_OPTIONS)
    assert set(decisions(scaler, fleet(2, wait_ms=9000), 4)) == {2}
    assert set(decisions(scaler, fleet(2), 2, 4) + decisions(scaler, fleet(2, wait_ms=9000), 4, 6)) == {2}


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (fleet(2, load=2.0), 3),  # load alone, before any request waits
        (fleet(2, wait_ms=60_000), 4),  # at most twice as many at once
        (fleet(8, wait_ms=60_000), 10),  # at most the maximum
    ],
)
def test_the_number_of_replicas_under_load(one: ReplicaFleet, wanted: int) -> None:
    assert decisions(Autoscaler(_OPTIONS), one, 6)[-1] == wanted


def test_replicas_are_removed_after_long_and_only_if_the_rest_stays_below_the_targets() -> None:
    numbers = decisions(Autoscaler(_OPTIONS), fleet(4, load=1.0), 61)
    assert numbers[:60] == [4] * 60
    assert numbers[60] == 2, "1.0 is 50 % of two, and would be 100 % of one"
    assert decisions(Autoscaler(_OPTIONS), fleet(2, load=1.2), 200)[-1] == 2, "neither more nor fewer"


def test_batch_work_adds_replicas_up_to_its_floor() -> None:
    one = fleet(4, load=2.4, batch_ms=3600_000 * 20)
    without = decisions(Autoscaler(_OPTIONS), fleet(4, load=2.4), 6)[-1]
    assert (without, decisions(Autoscaler(_OPTIONS), one, 6)[-1]) == (4, 4)
    large = AutoscaleOptions(min_replicas=1, max_replicas=100, up_after_s=5)
    assert decisions(Autoscaler(large), fleet(36, load=25.2), 6)[-1] == 36
    assert decisions(Autoscaler(large), fleet(36, load=25.2, batch_ms=3600_000 * 20), 6)[-1] == 40


def test_scaling_to_zero_and_back() -> None:
    options = AutoscaleOptions(min_replicas=0, max_replicas=2, idle_after_s=100, down_after_s=20)
    scaler = Autoscaler(options)
    scaler.decide(fleet(1), 0)
    idle = fleet(1, live=0)
    assert {scaler.decide(idle, now_s) for now_s in range(1, 100)} == {1}
    assert scaler.decide(idle, 100) == 0
    assert scaler.decide(fleet(0, live=0), 101) == 0
    assert scaler.decide(fleet(0, live=1), 102) == 1


@given(
    st.integers(0, 3),
    st.lists(
        st.tuples(
            st.integers(0, 30), st.floats(0, 1e6), st.floats(0, 30), st.floats(0, 1e9), st.integers(0, 9)
        )
    ),
)
def test_the_number_of_replicas_has_bounds(
    least: int, story: list[tuple[int, float, float, float, int]]
) -> None:
    options = AutoscaleOptions(
        min_replicas=least, max_replicas=10, up_after_s=1, down_after_s=2, idle_after_s=3
    )
    scaler = Autoscaler(options)
    for now_s, (present, wait_ms, load, batch_ms, live) in enumerate(story):
        one = fleet(present, wait_ms=wait_ms, load=load, batch_ms=batch_ms, live=live)
        number = scaler.decide(one, now_s)
        assert least <= number <= 10
        assert number > 0 or not live


def report(work_ms: float, wait_ms: float = 0.0, state: EngineState = EngineState.READY) -> ReplicaReport:
    wait = ByPriority(wait_ms, wait_ms + 500)
    forecast = Forecast(wait_ms=wait, token_ms=1.0, work_ms=ByPriority(work_ms, 0), num_live=ByPriority(1, 2))
    return ReplicaReport(state, forecast)


def test_reports_of_replicas_are_combined_into_the_fleet() -> None:
    monitor = FleetMonitor(window_s=1.0)
    for second in range(20):
        reports = {"a": report(500 * second, 100), "b": report(250 * second, 300)}
        loading = {"c": ReplicaReport(EngineState.LOADING), "d": ReplicaReport(EngineState.DRAINING)}
        total = monitor.look(reports | loading, second, num_unplaced=1)
    assert (total.num_present, total.wait_ms, round(total.load, 2), total.batch_ms) == (3, 100, 0.75, 1000)
    assert total.num_live == 7
    assert monitor.look({"a": report(100)}, 20).load < 0.6, "b is gone, and a's new process has done 100 ms"
