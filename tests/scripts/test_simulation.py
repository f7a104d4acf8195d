"""Many replicas in virtual time: deterministic, with complete answers."""

from __future__ import annotations

from dataclasses import replace

from simulation import stories
from simulation.fleet import Fault, Machine, Plan, simulate
from simulation.stories import read_curve
from simulation.turns import trace

_PLAN = Plan(Machine(read_curve("1b")), 4)
_FEW = trace(stories.scaled(stories.PREFIXES, 4), 40, seed=2)


def test_answers_are_complete_and_deterministic_after_a_death_and_a_drain() -> None:
    plan = replace(_PLAN, faults=(Fault(30, 0), Fault(40, 1, is_drain=True)))
    first, second = simulate(plan, _FEW), simulate(plan, _FEW)
    assert first.moved
    assert len(first.requests) == len(_FEW)
    assert all(tuple(live.output) == live.answer for live in first.requests)
    assert [live.first_s for live in second.requests] == [live.first_s for live in first.requests]
