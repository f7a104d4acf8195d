"""Many replicas in virtual time: the same every time, whole answers, and the goals of the prefix workload."""

from __future__ import annotations

from dataclasses import replace

from simulation import stories
from simulation.fleet import Fault, Machine, Plan, simulate
from simulation.stories import read_curve
from simulation.turns import trace

_PLAN = Plan(Machine(read_curve("1b")), 4)
_FEW = trace(stories.scaled(stories.PREFIXES, 4), 40, seed=2)


def test_every_answer_is_whole_at_equal_times_though_one_replica_dies_and_one_is_drained() -> None:
    struck = replace(_PLAN, faults=(Fault(30, 0), Fault(40, 1, is_drain=True)))
    first, again = simulate(struck, _FEW), simulate(struck, _FEW)
    assert first.moved
    assert len(first.requests) == len(_FEW)
    assert all(tuple(live.output) == live.answer for live in first.requests)
    assert [live.first_s for live in again.requests] == [live.first_s for live in first.requests]
