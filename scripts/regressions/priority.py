"""*priority*: priorities against first come, first served, in a pool too small for all running requests.

Batch requests alone need twice the cells of the pool, so new requests get room only by preemption.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bench.bench import Bench
from bench.results import Direction, WorkloadResult
from bench.servers import Contestant, Variant
from bench.workloads.mixed import FULL, QUICK, Window, class_lines, paced, run_both

_POOL_TOKENS = 2048


def workload(bench: Bench) -> WorkloadResult:
    whole, fifo = Variant.WHOLE.contestant, Variant.FIFO.contestant
    size = paced(bench, replace(QUICK if bench.is_quick else FULL, pool_tokens=_POOL_TOKENS), [whole])

    def measure(who: Contestant, number: int) -> Window:
        with bench.start(who, size.room) as server:
            return asyncio.run(run_both(bench, size, server, number))

    contest = bench.contest([whole, fifo], measure)
    times = contest.seconds(
        {f"interactive TTFT p{p}": lambda window, p=p: window.ttft_s(p) for p in (50, 95, 99)}
    )
    output, released = "output, both classes", "times that a request gave its cells back"
    return WorkloadResult(
        name="priority",
        sizes=f"a pool of {size.pool_tokens} tokens; {size.in_words} every {size.every_s:g} s; "
        f"window of {size.window_s:.0f} s",
        goals=(contest.goal_against(fifo.key, times[1], "interactive TTFT p95", 2.0),),
        lines=(
            *times,
            contest.line(output, "tok/s", Direction.AT_LEAST, lambda window: window.output_per_s),
            contest.line(released, "", Direction.AT_MOST, lambda window: window.count("preemptions")),
            *class_lines(contest, lambda window: window),
        ),
        failures=contest.failures,
    )
