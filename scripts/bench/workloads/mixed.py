"""*mixed*: interactive requests arrive by the clock while batch clients keep the machine full. A slower
machine gets fewer, from all servers alike."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.bench import Bench
from bench.clients import LoadFailed
from bench.prompts import Prompts, about
from bench.results import OURS, Direction, Figure, Goal, Rounds, WorkloadResult, percentile, ratios
from bench.servers import Contestant, Room, Server, Variant
from bench.traffic import BenchRequest, Priority, Trace, described, first_token_times

_MARGIN = 1.1
_PACE = 2.0
_SHORTEST_S = 0.3
"""Clients would limit shorter intervals."""


@dataclass(frozen=True)
class Size:
    idle_requests: int
    ramp_s: float
    """Time of batch clients alone before the window, because all begin with prompts at once."""
    window_s: float
    every_s: float = 1.5
    """Mean interval of interactive requests. The other times grow with it."""
    batch_clients: int = 8
    batch_prompt: int = 400
    batch_output: int = 100
    short_prompt: int = 33
    short_output: int = 12
    pool_tokens: int = 8192

    @property
    def room(self) -> Room:
        longest = int(_MARGIN * self.batch_prompt + _MARGIN * self.batch_output) + 1
        return Room(pool_tokens=self.pool_tokens, request_tokens=longest)

    def paced(self, request_s: float) -> Size:
        """Return the load for a lone request of this time: longer intervals make all times longer, shorter
        ones add requests."""
        every_s = max(_SHORTEST_S, round(_PACE * request_s, 2))
        slower = max(1.0, every_s / self.every_s)
        return replace(self, every_s=every_s, ramp_s=slower * self.ramp_s, window_s=slower * self.window_s)

    @property
    def in_words(self) -> str:
        return (
            f"{self.batch_clients} batch clients, about {self.batch_prompt} + {self.batch_output} tokens; "
            f"interactive about {self.short_prompt} + {self.short_output} tokens"
        )


FULL = Size(idle_requests=10, ramp_s=10, window_s=40)
QUICK = Size(idle_requests=6, ramp_s=0.5, window_s=3, every_s=0.5)


@dataclass(frozen=True)
class Window:
    """Traces between `begin` and `end`."""

    begin: float
    end: float
    batch: list[Trace]
    interactive: list[Trace]

    @property
    def computed_per_s(self) -> float:
        traces = self.batch + self.interactive
        return sum(t.computed_tokens(self.begin, self.end) for t in traces) / (self.end - self.begin)

    @property
    def output_per_s(self) -> float:
        return self._output_per_s(self.batch + self.interactive)

    @property
    def batch_output_per_s(self) -> float:
        return self._output_per_s(self.batch)

    def ttft_s(self, percent: float, priority: Priority = Priority.INTERACTIVE) -> float:
        """Return infinity if no request got a token, as `answer_s` does."""
        times = first_token_times(self._traces(priority))
        return percentile(times, percent) if times else math.inf

    def answer_s(self, percent: float, priority: Priority) -> float:
        times = [trace.end - trace.arrival for trace in self._traces(priority) if trace.end is not None]
        return percentile(times, percent) if times else math.inf

    def gap_s(self, percent: float) -> float:
        return percentile([gap for trace in self.interactive for gap in trace.gaps_s], percent)

    def count(self, timing: str) -> float:
        return float(sum(getattr(trace.timings, timing) for trace in self.batch + self.interactive))

    def _traces(self, priority: Priority) -> list[Trace]:
        return self.interactive if priority is Priority.INTERACTIVE else self.batch

    def _output_per_s(self, traces: list[Trace]) -> float:
        return sum(t.output_within(self.begin, self.end) for t in traces) / (self.end - self.begin)


async def idle_requests(prompts: Prompts, size: Size, server: Server, number: int) -> list[Trace]:
    """Run interactive requests one after the other. Raises LoadFailed."""
    clients = server.clients()
    requests = itertools.islice(interactive_requests(prompts, size, "idle", number), size.idle_requests)
    await clients.closed_loop(requests, 1)
    clients.check()
    return clients.traces


def paced(bench: Bench, size: Size, contestants: Sequence[Contestant]) -> Size:
    """Pace the load by the first server that answers, as a rule ours. Raises LoadFailed if none does."""
    for who in contestants:
        bench.say(f"what an interactive request takes alone: {who.label}")
        try:
            with bench.start(who, size.room) as server:
                return size.paced(median_s(asyncio.run(idle_requests(bench.prompts, size, server, 0))))
        except Exception as error:
            bench.say(f"  failed: {described(error)}")
    raise LoadFailed("none of the servers answers")


def median_s(traces: Sequence[Trace]) -> float:
    return statistics.median(trace.end - trace.arrival for trace in traces if trace.end is not None)


async def run_both(bench: Bench, size: Size, server: Server, number: int) -> Window:
    jobs = batch_requests(bench.prompts, size, "both", number)
    shorts = interactive_requests(bench.prompts, size, "both", number)
    return await run_window(size, server, jobs, shorts, window_arrivals(bench, size, number))


def window_arrivals(bench: Bench, size: Size, number: int) -> list[float]:
    """Return equal or exponential (Poisson) intervals' offsets within the window."""
    draw, offsets = random.Random(number), list[float]()
    now_s = 0.0 if bench.by_clock else draw.expovariate(1 / size.every_s)
    while now_s < size.window_s:
        offsets.append(now_s)
        now_s += size.every_s if bench.by_clock else draw.expovariate(1 / size.every_s)
    return offsets


async def run_window(
    size: Size,
    server: Server,
    jobs: Iterator[BenchRequest],
    shorts: Iterator[BenchRequest],
    offsets: Sequence[float],
) -> Window:
    """Cut batch off after the last interactive answer."""
    batch, interactive = server.clients(), server.clients()
    async with batch.endless(jobs, size.batch_clients):
        await asyncio.sleep(size.ramp_s)
        begin = time.perf_counter()
        await asyncio.gather(interactive.open_loop(shorts, offsets), asyncio.sleep(size.window_s))
    interactive.check()
    return Window(begin, begin + size.window_s, batch.traces, interactive.traces)


def batch_requests(prompts: Prompts, size: Size, phase: str, number: int) -> Iterator[BenchRequest]:
    """Yield endless requests. Phases have equal lengths but other tokens, so no phase helps another."""
    for i in itertools.count():
        yield BenchRequest(
            prompt=prompts.question(about(size.batch_prompt, "batch", i), phase, number, i),
            max_tokens=about(size.batch_output, "output", i),
            seed=i,
            priority=Priority.BATCH,
        )


def interactive_requests(prompts: Prompts, size: Size, phase: str, number: int) -> Iterator[BenchRequest]:
    for i in itertools.count():
        yield BenchRequest(
            prompt=prompts.question(about(size.short_prompt, "short", i), "short", phase, number, i),
            max_tokens=size.short_output,
            seed=i,
            priority=Priority.INTERACTIVE,
        )


@dataclass(frozen=True)
class MixedRun:
    both: Window
    idle_p50_s: float | None = None
    """Measured in the first round only, as the next, because they take as long as two windows."""
    alone_per_s: float | None = None
    """Computed tokens of batch clients alone."""


def run(bench: Bench) -> WorkloadResult:
    contestants = bench.contestants(Variant.WHOLE, Variant.FIFO)
    size = paced(bench, QUICK if bench.is_quick else FULL, contestants)

    def measure(who: Contestant, number: int) -> MixedRun:
        """Measure idle, and batch alone, apart, so that all servers enter the judged window equally fresh."""
        idle_p50_s = alone_per_s = None
        if who.key == OURS and number == 0:
            with bench.start(who, size.room) as server:
                bench.say("  idle, then batch alone")
                idle = asyncio.run(idle_requests(bench.prompts, size, server, number))
                jobs = batch_requests(bench.prompts, size, "alone", number)
                alone_per_s = asyncio.run(run_window(size, server, jobs, iter(()), [])).computed_per_s
                idle_p50_s = percentile(first_token_times(idle), 50)
        with bench.start(who, size.room) as server:
            return MixedRun(asyncio.run(run_both(bench, size, server, number)), idle_p50_s, alone_per_s)

    contest = bench.contest(contestants, measure)
    line, at_least = contest.line, Direction.AT_LEAST
    times = contest.seconds(
        {
            **{f"interactive TTFT p{p}": partial(_ttft_s, p) for p in (50, 95, 99)},
            "interactive TTFT worst": partial(_ttft_s, 100),
            "interactive inter-token latency p50": lambda run: run.both.gap_s(50),
            "interactive inter-token latency p95": lambda run: run.both.gap_s(95),
        }
    )
    output = line("output, both classes", "tok/s", at_least, lambda run: run.both.output_per_s)
    against = contest.goals_against_llama_server
    return WorkloadResult(
        name="mixed",
        sizes=f"{size.in_words} every {size.every_s:g} s "
        f"{'by the clock' if bench.by_clock else 'on average, at random (Poisson)'}, whatever happens: "
        f"twice what one takes alone, at least {_SHORTEST_S:g} s, for all servers the same; "
        f"window of {size.window_s:.0f} s",
        goals=(
            *contest.of_ours("goals", _own_goals),
            *against(times[1], "interactive TTFT p95", plain=40, best=25),
            *against(output, "output tokens/s of both classes", plain=1.1, best=1.1),
        ),
        lines=(
            *times,
            line("batch output", "tok/s", at_least, lambda run: run.both.batch_output_per_s),
            output,
            line("computed, both classes", "tok/s", at_least, lambda run: run.both.computed_per_s),
            *contest.seconds(_class_figures()),
        ),
        figures=contest.of_ours("figures", _figures),
        failures=contest.failures,
    )


def _ttft_s(percent: float, run: MixedRun) -> float:
    return run.both.ttft_s(percent)


def _class_figures() -> dict[str, Callable[[MixedRun], float]]:
    percents, figures = (50, 95, 99), dict[str, Callable[[MixedRun], float]]()
    for p in percents:
        figures[f"batch TTFT p{p}"] = lambda run, p=p: run.both.ttft_s(p, Priority.BATCH)
    for one, p in itertools.product(Priority, percents):
        figures[f"{one.value} whole answer p{p}"] = lambda run, one=one, p=p: run.both.answer_s(p, one)
    return figures


def _own_goals(runs: list[MixedRun]) -> tuple[Goal, ...]:
    p95 = Rounds.of(runs, partial(_ttft_s, 95))
    idle = Rounds(tuple(run.idle_p50_s for run in runs if run.idle_p50_s is not None))
    share = Rounds(tuple(100 * run.both.computed_per_s / run.alone_per_s for run in runs if run.alone_per_s))
    return (
        Goal.at_most("interactive TTFT p95", p95, 1.0, "s"),
        Goal.at_most("interactive TTFT p95, against the idle server's p50", ratios(p95, idle), 2.0, "x"),
        Goal.at_least("computed tokens/s of both classes, against the batch load alone", share, 90, "%"),
    )


def _figures(runs: list[MixedRun]) -> tuple[Figure, ...]:
    first = runs[0]
    rows = (
        ("ours, idle: TTFT p50", "s", first.idle_p50_s or 0.0),
        ("ours, batch alone: computed", "tok/s", first.alone_per_s or 0.0),
        ("ours: interruptions of complete requests", "", first.both.count("interruptions")),
        ("ours: preemptions of complete requests", "", first.both.count("preemptions")),
    )
    return tuple(Figure(what=what, rounds=Rounds((value,)), unit=unit) for what, unit, value in rows)
