"""Simulations for the report: the goal, sizes, faults, a day."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions
from simulation.figures import Figures, figures
from simulation.fleet import Fault, Plan, simulate
from simulation.replica import Machine
from simulation.routing import ROUTINGS
from simulation.turns import Turn
from simulation.workloads import Mix, day_curve, trace

PER_REPLICA = Mix(chats=0.06, questions=0.03, batch_rows=0.08)
"""Two thirds of the time of one replica with a model of 10^9 parameters on two cores."""
PREFIXES = Mix(chats=0.07, questions=0.05)
"""Nearly every prompt begins with a shared prefix."""


_MOST_SLOTS = 250
"""A step of 256 tokens has room for one of each."""


_MANY = 1000


class GoalFigures(NamedTuple):
    one: Figures
    rows: list[Figures]


def goal(curve: CostCurve, seconds: float, seed: int, num: int = 4) -> GoalFigures:
    turns = trace(scaled(PREFIXES, num), seconds, seed)
    plan = Plan(Machine(curve), num, seed=seed)
    return GoalFigures(run(one_instead(plan), turns), [*compared(plan, turns)])


def one_instead(plan: Plan) -> Plan:
    """Return a plan of one replica, as fast as all of the plan together, with the memory of all."""
    num, machine = plan.num_replicas, plan.machine
    giant = replace(
        machine,
        curve=faster(machine.curve, num),
        num_slots=min(_MOST_SLOTS, num * machine.num_slots),
        kv_tokens=num * machine.kv_tokens,
        cache_blocks=num * machine.cache_blocks,
    )
    return replace(plan, machine=giant, num_replicas=1, routing="round robin")


def sizes(curve: CostCurve, counts: Sequence[int], seconds: float, seed: int) -> Iterator[Figures]:
    for count in counts:
        # A thousand take ten minutes of one core as it is.
        until_s = seconds if count < _MANY else seconds / 6
        turns = trace(scaled(PER_REPLICA, count), until_s, seed)
        plan = Plan(
            Machine(curve),
            count,
            # A router for 100 replicas: there are several in front of more, which know of each other nothing.
            num_routers=max(1, count // 100),
            news_s=0.25 if count < _MANY else 1.0,
            until_s=until_s,
            seed=seed,
        )
        yield from compared(plan, turns)


def compared(plan: Plan, turns: Sequence[Turn]) -> Iterator[Figures]:
    for name in ROUTINGS:
        yield run(replace(plan, routing=name), turns)


def run(plan: Plan, turns: Sequence[Turn]) -> Figures:
    return figures(plan, simulate(plan, turns))


class FaultFigures(NamedTuple):
    name: str
    figures: Figures
    lost: int
    longest_pause_s: float


def faults(curve: CostCurve, seconds: float, seed: int) -> Iterator[FaultFigures]:
    turns = trace(scaled(PER_REPLICA, 4), seconds, seed)
    plan = Plan(Machine(curve), 4, seed=seed)
    stories = {
        "nothing happens": (),
        "one of four dies": (Fault(seconds / 2, 1),),
        "one of four is drained": (Fault(seconds / 2, 1, is_drain=True),),
    }
    for name, struck in stories.items():
        planned = replace(plan, faults=struck)
        outcome = simulate(planned, turns)
        yield FaultFigures(
            name,
            figures(planned, outcome),
            sum(tuple(one.output) != one.answer for one in outcome.requests),
            max((one.longest_pause_s for one in outcome.moved), default=0.0),
        )


class DayFigures(NamedTuple):
    figures: Figures
    fixed: Figures
    sizes: list[tuple[float, int, int]]
    """Time, serving replicas, and wanted replicas."""


def day(curve: CostCurve, day_s: float, seed: int, most: int = 8) -> DayFigures:
    """Run a day in less time: twice the mean at noon, next to nothing at night, with bursts."""
    busiest = scaled(PER_REPLICA, 0.45 * most)
    turns = trace(replace(busiest, batch_rows=0.0), day_s, seed, day_curve(day_s))
    options = AutoscaleOptions(min_replicas=1, max_replicas=most)
    plan = Plan(Machine(curve), 1, autoscale=options, seed=seed)
    outcome = simulate(plan, turns)
    largest = max(serving for _, serving, _ in outcome.sizes)
    fixed = run(replace(plan, autoscale=None, num_replicas=largest), turns)
    return DayFigures(figures(plan, outcome), fixed, outcome.sizes)


def scaled(mix: Mix, factor: float) -> Mix:
    return replace(
        mix,
        chats=factor * mix.chats,
        questions=factor * mix.questions,
        batch_rows=factor * mix.batch_rows,
    )


def faster(curve: CostCurve, factor: float) -> CostCurve:
    steps = tuple((num, ms / factor) for num, ms in curve.step_ms)
    return CostCurve(step_ms=steps, attended_ms=curve.attended_ms / factor)
