"""*priority*: priorities against first come, first served, where the pool is too small for all that run.

Batch requests alone want twice the cells that there are, so new requests find room only by preemption.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.asking import Priority
from bench.bench import Bench
from bench.contest import Contest
from bench.contestants import Contestant, Variant
from bench.results import Direction, Line, WorkloadResult
from bench.workloads.mixed import class_lines
from bench.workloads.mixed_load import FULL as MIXED
from bench.workloads.mixed_load import QUICK as MIXED_QUICK
from bench.workloads.mixed_load import Window, idle_requests, median_s, run_both

FULL = replace(MIXED, pool_tokens=2048)
QUICK = replace(MIXED_QUICK, pool_tokens=2048)


def workload(bench: Bench) -> WorkloadResult:
    wanted = QUICK if bench.is_quick else FULL
    with bench.start(Variant.WHOLE.contestant, wanted.room) as server:
        size = wanted.paced(median_s(asyncio.run(idle_requests(bench.prompts, wanted, server, 0))))

    def measure(who: Contestant, number: int) -> Window:
        with bench.start(who, size.room) as server:
            return asyncio.run(run_both(bench, size, server, number))

    whole, fifo = Variant.WHOLE.contestant, Variant.FIFO.contestant
    contest = bench.contest([whole, fifo], measure)
    lines = _lines(contest)
    return WorkloadResult(
        name="priority",
        sizes=f"a pool of {size.pool_tokens} tokens; {size.batch_clients} batch clients, about "
        f"{size.batch_prompt} + {size.batch_output} tokens; interactive about {size.short_prompt} + "
        f"{size.short_output} tokens every {size.every_s:g} s; window of {size.window_s:.0f} s",
        goals=(contest.goal_against(fifo.key, lines[1], "interactive TTFT p95", 2.0),),
        lines=(*lines, *class_lines(contest, lambda window: window)),
        distributions=contest.distributions(lambda window: window.interactive),
        failures=contest.failures,
    )


def _lines(contest: Contest[Window]) -> tuple[Line, ...]:
    def ttft(percent: float) -> Line:
        return contest.line(
            f"interactive TTFT p{percent:g}",
            "s",
            Direction.AT_MOST,
            lambda window: window.ttft_s(Priority.INTERACTIVE, percent),
        )

    return (
        *map(ttft, (50, 95, 99)),
        contest.line("output, both classes", "tok/s", Direction.AT_LEAST, lambda window: window.output_per_s),
        contest.line(
            "times that a request gave its cells back",
            "",
            Direction.AT_MOST,
            lambda window: sum(trace.timings.preemptions for trace in window.batch + window.interactive),
        ),
    )
