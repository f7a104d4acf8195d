"""*schedule*: the cost of a step in Python when many requests run and very many wait."""

from __future__ import annotations

import random
import time

from bench.bench import Bench
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.stats import Rounds, percentile
from bench.workloads.pure_scheduler import PureScheduler
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling

_RUNNING = 64
_WAITING = 10_000
_PROMPT_TOKENS = 64
_USERS = 100
_STEPS, _QUICK_STEPS = 600, 200
_WARM_UP_STEPS = 200
"""After so many steps most running sequences decode, and some have ended."""


def run(bench: Bench) -> WorkloadResult:
    num_steps = _QUICK_STEPS if bench.is_quick else _STEPS
    runs = bench.interleaved({"schedule() and apply()": lambda number: _measure(num_steps, number)})
    (rounds,) = runs.values()
    schedule = Rounds.of(rounds, lambda steps: percentile([step[0] for step in steps], 50))
    return WorkloadResult(
        name="schedule",
        sizes=f"{_RUNNING} running, {_WAITING} waiting, {num_steps} steps with a fake result",
        goals=(
            Goal(
                what="schedule(), median",
                rounds=schedule,
                direction=Direction.AT_MOST,
                limit=1.0,
                unit="ms",
            ),
        ),
        figures=(
            Figure(what="schedule() p50", rounds=schedule, unit="ms"),
            Figure(what="schedule() p99", rounds=Rounds.of(rounds, _schedule_p99), unit="ms"),
            Figure(what="schedule() and apply() p50", rounds=Rounds.of(rounds, _both_p50), unit="ms"),
        ),
    )


Steps = list[tuple[float, float]]
"""The milliseconds of schedule() and of apply(), for each step."""


def _measure(num_steps: int, number: int) -> Steps:
    scheduler = PureScheduler(num_slots=_RUNNING)
    source = _Requests(number)
    for _ in range(_RUNNING + _WAITING):
        scheduler.submit(source.next())
    for _ in range(_WARM_UP_STEPS):
        _step(scheduler, source)
    assert scheduler.num_running == _RUNNING, f"{scheduler.num_running} running"
    return [_step(scheduler, source) for _ in range(num_steps)]


def _step(scheduler: PureScheduler, source: _Requests) -> tuple[float, float]:
    """One step. New requests replace those that end, so that the queue keeps its length."""
    start = time.perf_counter()
    step = scheduler.schedule()
    scheduled = time.perf_counter()
    result = scheduler.fake_result(step)
    executed = time.perf_counter()
    advances = scheduler.apply(step, result)
    applied = time.perf_counter()
    scheduler.count(step)
    for _ in range(scheduler.finish_complete(advances)):
        scheduler.submit(source.next())
    return 1000 * (scheduled - start), 1000 * (applied - executed)


class _Requests:
    """Requests of both priorities, many users and many output lengths. No two prompts share anything."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self._draw = random.Random(number)

    def next(self) -> GenerationRequest:
        self._count += 1
        return GenerationRequest(
            id=f"r{self._count}",
            tokens=random_tokens(_PROMPT_TOKENS, "schedule", self._number, self._count),
            max_tokens=self._draw.randint(100, 400),
            sampling=Sampling(seed=self._count),
            priority=self._draw.choice(list(Priority)),
            client=f"user {self._draw.randrange(_USERS)}",
        )


def _schedule_p99(steps: Steps) -> float:
    return percentile([step[0] for step in steps], 99)


def _both_p50(steps: Steps) -> float:
    return percentile([schedule + apply for schedule, apply in steps], 50)
