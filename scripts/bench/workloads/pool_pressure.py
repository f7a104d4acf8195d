"""*pool pressure*: more requests than the KV pool can hold; nobody fails, and nobody's answer changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Ask, Priority, Trace
from bench.bench import Bench
from bench.greedy import NEAR_TIE, Comparison, Verdict, compare
from bench.load import Clients
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Variant
from bench.stats import Rounds

_ALTERNATIVES = 2


@dataclass(frozen=True)
class Size:
    requests: int
    prompt_tokens: int
    output_tokens: int
    pool_tokens: int
    every_s: float
    """Between interactive arrivals; all batch requests are there from the start."""


FULL = Size(requests=32, prompt_tokens=300, output_tokens=200, pool_tokens=2048, every_s=2.0)
QUICK = Size(requests=16, prompt_tokens=150, output_tokens=50, pool_tokens=512, every_s=0.05)


@dataclass(frozen=True)
class PressureRun:
    traces: list[Trace]
    comparisons: list[Comparison]

    @property
    def num_complete(self) -> int:
        return sum(t.is_complete and t.output_tokens == t.ask.max_tokens for t in self.traces)

    @property
    def errors(self) -> list[str]:
        return [trace.error for trace in self.traces if trace.error is not None]

    @property
    def preemptions(self) -> int:
        return sum(trace.timings.preemptions for trace in self.traces)

    def count(self, verdict: Verdict) -> int:
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    pool = ("--ctx-size", str(size.pool_tokens))
    bench.say("each request alone")
    with bench.server(Variant.WHOLE, *pool) as server:
        alone = Clients(server.port)
        asyncio.run(alone.closed_loop(asks(size), 1))
    alone.check()

    def measure(_: int) -> PressureRun:
        with bench.server(Variant.WHOLE, *pool) as server:
            together = Clients(server.port)
            asyncio.run(together.open_loop(asks(size), arrivals(size)))
            return _compared(alone, together)

    runs = bench.interleaved({Variant.WHOLE: measure})[Variant.WHOLE]
    return WorkloadResult(
        name="pool-pressure",
        sizes=f"{size.requests} requests of {size.prompt_tokens} + {size.output_tokens} tokens: "
        f"half of them batch at once, interactive ones every {size.every_s:g} s; "
        f"a pool of {size.pool_tokens}",
        goals=_goals(size, runs),
        figures=_figures(runs),
        notes=_notes(runs),
    )


def asks(size: Size) -> list[Ask]:
    """The batch half first."""
    return [
        Ask(
            prompt=random_tokens(size.prompt_tokens, "pressure", i),
            max_tokens=size.output_tokens,
            temperature=0,
            priority=Priority.BATCH if i < size.requests // 2 else Priority.INTERACTIVE,
            logprobs=_ALTERNATIVES,
        )
        for i in range(size.requests)
    ]


def arrivals(size: Size) -> list[float]:
    """Of `asks`: the pool is full of batch work when the first interactive request comes."""
    half = size.requests // 2
    return [max(0.0, size.every_s * (i - half + 1)) for i in range(size.requests)]


def _compared(alone: Clients, together: Clients) -> PressureRun:
    """Request by request; those that failed have nothing to compare."""
    expected = {trace.ask.prompt: trace.scored for trace in alone.traces}
    complete = [trace for trace in together.traces if trace.is_complete]
    return PressureRun(together.traces, [compare(expected[t.ask.prompt], t.scored) for t in complete])


def _goals(size: Size, runs: list[PressureRun]) -> tuple[Goal, ...]:
    """The worst round counts."""
    return (
        _goal("requests complete", min(run.num_complete for run in runs), Direction.AT_LEAST, size.requests),
        _goal("errors", max(len(run.errors) for run in runs), Direction.AT_MOST, 0),
        _goal(
            "greedy outputs that differ from the run alone, near ties of logits not counted",
            max(run.count(Verdict.DIFFERENT) for run in runs),
            Direction.AT_MOST,
            0,
        ),
    )


def _goal(what: str, measured: float, direction: Direction, limit: float) -> Goal:
    return Goal(what=what, measured=measured, direction=direction, limit=limit)


def _figures(runs: list[PressureRun]) -> tuple[Figure, ...]:
    return (
        Figure(what="outputs identical", rounds=_each(runs, lambda run: run.count(Verdict.SAME))),
        Figure(
            what="outputs that part at a near tie",
            rounds=_each(runs, lambda run: run.count(Verdict.NEAR_TIE)),
        ),
        Figure(what="outputs that differ", rounds=_each(runs, lambda run: run.count(Verdict.DIFFERENT))),
        Figure(what="preemptions", rounds=_each(runs, lambda run: run.preemptions)),
    )


def _notes(runs: list[PressureRun]) -> tuple[str, ...]:
    """The exceptions, and what failed."""
    notes = [f"round {n + 1}: {error}" for n, run in enumerate(runs) for error in run.errors]
    for number, run in enumerate(runs):
        exceptions = [c for c in run.comparisons if c.verdict is not Verdict.SAME]
        notes += [f"round {number + 1}: {_exception(comparison)}" for comparison in exceptions]
    return tuple(notes)


def _exception(comparison: Comparison) -> str:
    at = f"{comparison.verdict.value} at output token {comparison.position}"
    if comparison.gap is None:
        return f"{at}, the other's choice is not among the best {_ALTERNATIVES}"
    return f"{at}, candidates {comparison.gap:.3f} apart (near: up to {NEAR_TIE})"


def _each(runs: list[PressureRun], figure: Callable[[PressureRun], int]) -> Rounds:
    return Rounds(tuple(float(figure(run)) for run in runs))
