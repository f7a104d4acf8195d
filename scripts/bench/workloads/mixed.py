"""*mixed*: interactive requests arrive by the clock while batch clients keep the machine full."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.asking import Ask, Priority, Trace, first_token_times
from bench.bench import Bench
from bench.load import Clients, fixed_arrivals
from bench.prompts import about, random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Variant
from bench.stats import Rounds, percentile, ratio

_SERVER = ("--ctx-size", "8192")
_PAUSE_S = 1.0
"""After requests were cut off, until the next measurement."""


@dataclass(frozen=True)
class Size:
    idle_requests: int
    ramp_s: float
    """Batch clients alone, before the window opens: they all begin with their prompts at once."""
    window_s: float
    every_s: float = 1.5
    batch_clients: int = 8
    batch_prompt: int = 400
    batch_output: int = 100
    short_prompt: int = 33
    short_output: int = 12


FULL = Size(idle_requests=20, ramp_s=20, window_s=75)
QUICK = Size(idle_requests=6, ramp_s=5, window_s=15)


@dataclass(frozen=True)
class Window:
    """What went on from `begin` to `end`, and the traces that say so."""

    begin: float
    end: float
    batch: list[Trace]
    interactive: list[Trace]

    @property
    def computed_per_s(self) -> float:
        """Prompt and output tokens of both classes a second."""
        traces = self.batch + self.interactive
        return sum(t.computed_tokens(self.begin, self.end) for t in traces) / (self.end - self.begin)


@dataclass(frozen=True)
class MixedRun:
    idle: list[Trace]
    alone: Window
    both: Window

    @property
    def idle_p50_s(self) -> float:
        return percentile(first_token_times(self.idle), 50)

    def ttft_s(self, percent: float) -> float:
        return percentile(first_token_times(self.both.interactive), percent)

    @property
    def gap_p95_s(self) -> float:
        return percentile([gap for trace in self.both.interactive for gap in trace.gaps_s], 95)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(number: int) -> MixedRun:
        with bench.server(Variant.WHOLE, *_SERVER) as server:
            return asyncio.run(_measure(bench, size, server.port, number))

    runs = bench.interleaved({Variant.WHOLE: measure})[Variant.WHOLE]
    return WorkloadResult(
        name="mixed",
        sizes=f"{size.batch_clients} batch clients, about {size.batch_prompt} + {size.batch_output} tokens; "
        f"interactive about {size.short_prompt} + {size.short_output} tokens every {size.every_s} s; "
        f"window of {size.window_s:g} s",
        goals=_goals(runs),
        figures=_figures(runs),
    )


async def _measure(bench: Bench, size: Size, port: int, number: int) -> MixedRun:
    """Idle, batch alone, both: in one server's life, one after the other."""
    bench.say("  idle")
    idle = Clients(port)
    await idle.closed_loop(itertools.islice(_interactive(size, "idle", number), size.idle_requests), 1)
    idle.check()
    bench.say("  batch alone")
    alone = await _window(size, port, _batch(size, "alone", number), iter(()))
    bench.say("  batch and interactive")
    both = await _window(size, port, _batch(size, "both", number), _interactive(size, "both", number))
    return MixedRun(idle.traces, alone, both)


async def _window(size: Size, port: int, batch_asks: Iterator[Ask], short_asks: Iterator[Ask]) -> Window:
    """The batch load goes on until the last interactive request is answered, and is then cut off."""
    batch, interactive = Clients(port), Clients(port)
    background = asyncio.create_task(batch.closed_loop(batch_asks, size.batch_clients))
    try:
        await asyncio.sleep(size.ramp_s)
        begin = time.perf_counter()
        arrivals = fixed_arrivals(size.every_s, size.window_s)
        await asyncio.gather(interactive.open_loop(short_asks, arrivals), asyncio.sleep(size.window_s))
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
    batch.check()
    interactive.check()
    await asyncio.sleep(_PAUSE_S)
    return Window(begin, begin + size.window_s, batch.traces, interactive.traces)


def _batch(size: Size, phase: str, number: int) -> Iterator[Ask]:
    """Without end. Lengths are the same with and without company, tokens are not: no phase helps another."""
    for i in itertools.count():
        yield Ask(
            prompt=random_tokens(about(size.batch_prompt, "batch", i), phase, number, i),
            max_tokens=about(size.batch_output, "output", i),
            seed=i,
            priority=Priority.BATCH,
        )


def _interactive(size: Size, phase: str, number: int) -> Iterator[Ask]:
    for i in itertools.count():
        yield Ask(
            prompt=random_tokens(about(size.short_prompt, "short", i), "short", phase, number, i),
            max_tokens=size.short_output,
            seed=i,
            priority=Priority.INTERACTIVE,
        )


def _goals(runs: list[MixedRun]) -> tuple[Goal, ...]:
    p95 = _each(runs, lambda run: run.ttft_s(95))
    idle = _each(runs, lambda run: run.idle_p50_s)
    both = _each(runs, lambda run: run.both.computed_per_s)
    alone = _each(runs, lambda run: run.alone.computed_per_s)
    return (
        Goal(
            what="interactive TTFT p95",
            measured=p95.median,
            direction=Direction.AT_MOST,
            limit=1.0,
            unit="s",
        ),
        Goal(
            what="interactive TTFT p95, against the idle server's p50",
            measured=ratio(p95, idle),
            direction=Direction.AT_MOST,
            limit=2.0,
            unit="x",
        ),
        Goal(
            what="computed tokens/s of both classes, against the batch load alone",
            measured=100 * ratio(both, alone),
            direction=Direction.AT_LEAST,
            limit=90,
            unit="%",
        ),
    )


def _figures(runs: list[MixedRun]) -> tuple[Figure, ...]:
    rows: tuple[tuple[str, str, Callable[[MixedRun], float]], ...] = (
        ("idle: TTFT p50", "s", lambda run: run.idle_p50_s),
        ("mixed: interactive TTFT p50", "s", lambda run: run.ttft_s(50)),
        ("mixed: interactive TTFT p95", "s", lambda run: run.ttft_s(95)),
        ("mixed: interactive TTFT worst", "s", lambda run: run.ttft_s(100)),
        ("mixed: interactive inter-token latency p95", "s", lambda run: run.gap_p95_s),
        ("batch alone: computed", "tok/s", lambda run: run.alone.computed_per_s),
        ("mixed: computed, both classes", "tok/s", lambda run: run.both.computed_per_s),
        ("mixed: interruptions of complete requests", "", lambda run: _sum(run, "interruptions")),
        ("mixed: preemptions of complete requests", "", lambda run: _sum(run, "preemptions")),
    )
    return tuple(Figure(what=what, rounds=_each(runs, figure), unit=unit) for what, unit, figure in rows)


def _sum(run: MixedRun, timing: str) -> float:
    return float(sum(getattr(trace.timings, timing) for trace in run.both.batch + run.both.interactive))


def _each(runs: list[MixedRun], figure: Callable[[MixedRun], float]) -> Rounds:
    return Rounds(tuple(map(figure, runs)))
