"""*schedule*: cost of a step in Python while many requests run and very many wait."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.bench import Bench
from bench.prompts import random_tokens
from bench.results import Figure, Goal, Rounds, WorkloadResult, percentile
from simulation.fleet import new_scheduler

from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Sample, StepResult
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler

_RUNNING = 64
_WAITING = 10_000
_PROMPT_TOKENS = 64
_USERS = 100
_STEPS, _QUICK_STEPS = 600, 200
_WARM_UP_STEPS = 200
"""After these steps most running sequences decode, and some have ended."""
Steps = list[tuple[float, float]]


def workload(bench: Bench) -> WorkloadResult:
    num_steps = _QUICK_STEPS if bench.is_quick else _STEPS
    rounds = [_measured(num_steps, number) for number in range(bench.rounds)]

    def figure(what: str, percent: float, *, with_apply: bool = False) -> Figure:
        times = Rounds.of(
            rounds, lambda steps: percentile([one[0] + with_apply * one[1] for one in steps], percent)
        )
        return Figure(what=f"{what} p{percent:g}", rounds=times, unit="ms")

    schedule = figure("schedule()", 50)
    both = figure("schedule() and apply()", 50, with_apply=True)
    return WorkloadResult(
        name="schedule",
        sizes=f"{_RUNNING} running, {_WAITING} waiting, {num_steps} steps with a fake result",
        goals=(Goal.at_most("schedule(), median", schedule.rounds, 1.0, "ms"),),
        figures=(schedule, figure("schedule()", 99), both),
    )


def _measured(num_steps: int, number: int) -> Steps:
    ledger, cache = KVLedger(4_096), SavedPrefixes(4_096)
    curve = CostModel.guess().curve
    scheduler = new_scheduler(num_slots=_RUNNING, ledger=ledger, cache=cache, curve=curve, outputs=_RUNNING)
    source = _requests(number)
    for _ in range(_RUNNING + _WAITING):
        scheduler.sequences.submit(next(source))
    for _ in range(_WARM_UP_STEPS):
        _step(scheduler, source)
    return [_step(scheduler, source) for _ in range(num_steps)]


def _step(scheduler: Scheduler, source: Iterator[GenerationRequest]) -> tuple[float, float]:
    """Replace ended requests, so that the queue keeps its length."""
    start = time.perf_counter()
    step = scheduler.schedule()
    scheduled = time.perf_counter()
    samples = {span.slot: Sample(500) for span in step.spans if span.sample}
    result = StepResult(samples=samples, padding=step.padding)
    executed = time.perf_counter()
    advances = scheduler.apply(step, result)
    applied = time.perf_counter()
    for advance in advances:
        if advance.sequence.remaining == 0:
            scheduler.sequences.finish(advance.sequence)
            scheduler.sequences.submit(next(source))
    return 1000 * (scheduled - start), 1000 * (applied - executed)


def _requests(number: int) -> Iterator[GenerationRequest]:
    draw = random.Random(number)
    count = 0
    while True:
        count += 1
        yield GenerationRequest(
            id=f"r{count}",
            tokens=random_tokens(_PROMPT_TOKENS, "schedule", number, count),
            max_tokens=draw.randint(100, 400),
            sampling=Sampling(seed=count),
            priority=draw.choice(list(Priority)),
            client=f"user {draw.randrange(_USERS)}",
        )
