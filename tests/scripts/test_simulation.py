"""Many replicas in virtual time: the same every time, with the goals of the prefix workload met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from simulation import stories
from simulation.figures import Figures, figures
from simulation.fleet import Fault, Plan, simulate
from simulation.machines import read_curve
from simulation.replica import Machine
from simulation.turns import Turn, read_trace, write_trace
from simulation.workloads import trace

from openai_cpu_server.replicas.autoscaling import AutoscaleOptions

_CURVE = read_curve("1b")
_PLAN = Plan(Machine(_CURVE), 4)
_TURNS = trace(stories.scaled(stories.PREFIXES, 4), 300, seed=1)
_FEW = trace(stories.scaled(stories.PREFIXES, 4), 40, seed=2)


def timeless(one: Figures) -> Figures:
    """Without what is measured in real time."""
    return msgspec.structs.replace(one, choosing_p50_us=0.0, choosing_p95_us=0.0)


@pytest.mark.slow
def test_a_prefix_workload_is_shared_evenly_and_hardly_computed_twice() -> None:
    ours, one = stories.run(_PLAN, _TURNS), stories.run(stories.one_instead(_PLAN), _TURNS)
    assert ours.hit_rate >= 0.95 * one.hit_rate
    assert ours.imbalance < 1.25


def test_every_answer_is_whole_and_the_same_the_next_time() -> None:
    first, again = simulate(_PLAN, _FEW), simulate(_PLAN, _FEW)
    assert len(first.requests) == len(_FEW)
    assert all(tuple(live.output) == live.answer for live in first.requests)
    assert timeless(figures(_PLAN, again)) == timeless(figures(_PLAN, first))
    assert [live.first_s for live in again.requests] == [live.first_s for live in first.requests]


def test_nothing_is_lost_or_doubled_where_one_dies_and_one_is_drained() -> None:
    struck = replace(_PLAN, faults=(Fault(30, 0), Fault(40, 1, is_drain=True)))
    outcome = simulate(struck, _FEW)
    assert outcome.moved
    assert all(tuple(live.output) == live.answer for live in outcome.requests)


def test_steps_that_are_simulated_as_one_change_little() -> None:
    silent = replace(_PLAN, machine=Machine(_CURVE, noise=0.0))
    strides = figures(silent, simulate(silent, _FEW))
    single = replace(_PLAN, machine=Machine(_CURVE, noise=0.0, stride=1))
    steps = figures(single, simulate(single, _FEW))
    assert strides.hit_rate == pytest.approx(steps.hit_rate, rel=0.05)
    assert strides.tokens_per_s == pytest.approx(steps.tokens_per_s, rel=0.1)


def test_no_replica_while_nobody_asks_and_one_when_somebody_does() -> None:
    options = AutoscaleOptions(min_replicas=0, max_replicas=2, idle_after_s=30, down_after_s=20)
    turn = Turn(at_s=100, session="a", tokens=100, output=20)
    late = Turn(at_s=150, session="b", tokens=100, output=20)
    outcome = simulate(replace(_PLAN, num_replicas=1, autoscale=options), [turn, late])
    assert min(serving for _, serving, _ in outcome.sizes) == 0
    assert all(live.ended_s for live in outcome.requests)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", _TURNS)
    assert read_trace(tmp_path / "trace.jsonl") == _TURNS
