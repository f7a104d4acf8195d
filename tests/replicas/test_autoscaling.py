"""How many replicas there should be: targets, hysteresis, bounds."""

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


def asked(scaler: Autoscaler, one: ReplicaFleet, seconds: int, begin_s: int = 0) -> list[int]:
    return [scaler.decide(one, begin_s + now_s) for now_s in range(seconds)]


def test_a_wait_over_the_target_that_lasts_brings_more_and_a_short_one_none() -> None:
    assert asked(Autoscaler(_OPTIONS), fleet(2, wait_ms=1400), 8) == [2, 2, 2, 2, 2, 3, 3, 3]
    scaler = Autoscaler(_OPTIONS)
    assert set(asked(scaler, fleet(2, wait_ms=9000), 4)) == {2}
    assert set(asked(scaler, fleet(2), 2, 4) + asked(scaler, fleet(2, wait_ms=9000), 4, 6)) == {2}


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (fleet(2, load=2.0), 3),  # foreseen before anybody waits
        (fleet(2, wait_ms=60_000), 4),  # not more than twice as many at once
        (fleet(8, wait_ms=60_000), 10),  # nor than are allowed
    ],
)
def test_how_many_more(one: ReplicaFleet, wanted: int) -> None:
    assert asked(Autoscaler(_OPTIONS), one, 6)[-1] == wanted


def test_fewer_only_after_long_and_where_the_rest_keeps_below_the_targets() -> None:
    decided = asked(Autoscaler(_OPTIONS), fleet(4, load=1.0), 61)
    assert decided[:60] == [4] * 60
    assert decided[60] == 2, "1.0 is 50 % of two, and would be 100 % of one"
    assert asked(Autoscaler(_OPTIONS), fleet(2, load=1.2), 200)[-1] == 2, "neither more nor fewer"


def test_batch_work_is_worth_its_floor_and_no_more() -> None:
    one = fleet(4, load=2.4, batch_ms=3600_000 * 20)
    without = asked(Autoscaler(_OPTIONS), fleet(4, load=2.4), 6)[-1]
    assert (without, asked(Autoscaler(_OPTIONS), one, 6)[-1]) == (4, 4)
    large = AutoscaleOptions(min_replicas=1, max_replicas=100, up_after_s=5)
    assert asked(Autoscaler(large), fleet(36, load=25.2), 6)[-1] == 36
    assert asked(Autoscaler(large), fleet(36, load=25.2, batch_ms=3600_000 * 20), 6)[-1] == 40


def test_to_none_where_that_is_wanted_and_back() -> None:
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
def test_never_outside_the_bounds(least: int, story: list[tuple[int, float, float, float, int]]) -> None:
    options = AutoscaleOptions(
        min_replicas=least, max_replicas=10, up_after_s=1, down_after_s=2, idle_after_s=3
    )
    scaler = Autoscaler(options)
    for now_s, (present, wait_ms, load, batch_ms, live) in enumerate(story):
        one = fleet(present, wait_ms=wait_ms, load=load, batch_ms=batch_ms, live=live)
        decided = scaler.decide(one, now_s)
        assert least <= decided <= 10
        assert decided > 0 or not live


def report(work_ms: float, wait_ms: float = 0.0, state: EngineState = EngineState.READY) -> ReplicaReport:
    wait = ByPriority(wait_ms, wait_ms + 500)
    told = Forecast(wait_ms=wait, token_ms=1.0, work_ms=ByPriority(work_ms, 0), num_live=ByPriority(1, 2))
    return ReplicaReport(state, told)


def test_what_replicas_report_makes_the_fleet() -> None:
    monitor = FleetMonitor(window_s=1.0)
    for second in range(20):
        reports = {"a": report(500 * second, 100), "b": report(250 * second, 300)}
        loading = {"c": ReplicaReport(EngineState.LOADING), "d": ReplicaReport(EngineState.DRAINING)}
        seen = monitor.look(reports | loading, second, num_unplaced=1)
    assert (seen.num_present, seen.wait_ms, round(seen.load, 2), seen.batch_ms) == (3, 100, 0.75, 1000)
    assert seen.num_live == 7
    assert monitor.look({"a": report(100)}, 20).load < 0.6, "b is gone, and a's new process has done 100 ms"
