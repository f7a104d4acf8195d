"""*mixed*: interactive requests arrive by the clock while batch clients keep the machine full. Their rate
follows a measurement: half as fast a machine gets half as many, from all servers alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bench.asking import Priority, Trace, first_token_times
from bench.bench import Bench
from bench.contest import OURS, Contest
from bench.contestants import Contestant, Variant
from bench.failures import described
from bench.load import LoadFailed
from bench.results import Direction, Figure, Goal, Line, WorkloadResult
from bench.stats import Rounds, percentile, ratios
from bench.workloads.mixed_load import (
    FULL,
    QUICK,
    SHORTEST_S,
    Size,
    Window,
    batch_asks,
    idle_requests,
    median_s,
    run_both,
    run_window,
)

T = TypeVar("T")


@dataclass(frozen=True)
class OwnPhases:
    idle: list[Trace]
    alone: Window

    @property
    def idle_p50_s(self) -> float:
        return percentile(first_token_times(self.idle), 50)


@dataclass(frozen=True)
class MixedRun:
    both: Window
    own: OwnPhases | None = None
    """Measured in the first round only, because they take as long as two windows."""

    def ttft_s(self, percent: float) -> float:
        return self.both.ttft_s(Priority.INTERACTIVE, percent)

    def gap_s(self, percent: float) -> float:
        return percentile([gap for trace in self.both.interactive for gap in trace.gaps_s], percent)


def run(bench: Bench) -> WorkloadResult:
    contestants = bench.contestants(Variant.WHOLE, Variant.FIFO)
    size = _paced(bench, QUICK if bench.is_quick else FULL, contestants)

    def measure(who: Contestant, number: int) -> MixedRun:
        phases = _own_phases(bench, size, who, number) if who.key == OURS and number == 0 else None
        with bench.start(who, size.room) as server:
            return MixedRun(asyncio.run(run_both(bench, size, server, number)), phases)

    contest = bench.contest(contestants, measure)
    lines = _lines(contest)
    return WorkloadResult(
        name="mixed",
        sizes=f"{size.batch_clients} batch clients, about {size.batch_prompt} + {size.batch_output} tokens; "
        f"interactive about {size.short_prompt} + {size.short_output} tokens every {size.every_s:g} s "
        f"{'by the clock' if bench.by_clock else 'on average, at random (Poisson)'}, whatever happens: "
        f"twice what one takes alone, at least {SHORTEST_S:g} s, for all servers the same; "
        f"window of {size.window_s:.0f} s",
        goals=(*contest.of_ours("goals", _own_goals), *_goals(contest, lines)),
        lines=tuple(lines.values()),
        distributions=contest.distributions(lambda run: run.both.interactive),
        figures=contest.of_ours("figures", _figures),
        failures=contest.failures,
    )


def _paced(bench: Bench, size: Size, contestants: Sequence[Contestant]) -> Size:
    """Load paced by the first server that answers, as a rule ours. Raises LoadFailed if none does."""
    for who in contestants:
        bench.say(f"what an interactive request takes alone: {who.label}")
        try:
            with bench.start(who, size.room) as server:
                return size.paced(median_s(asyncio.run(idle_requests(bench.prompts, size, server, 0))))
        except Exception as error:
            bench.say(f"  failed: {described(error)}")
    raise LoadFailed("none of the servers answers")


def _own_phases(bench: Bench, size: Size, who: Contestant, number: int) -> OwnPhases:
    """Idle, then batch alone. They run apart, so that all servers enter the judged window equally fresh."""
    with bench.start(who, size.room) as server:
        bench.say("  idle")
        idle = asyncio.run(idle_requests(bench.prompts, size, server, number))
        bench.say("  batch alone")
        alone = run_window(size, server, batch_asks(bench.prompts, size, "alone", number), iter(()), [])
        phases = OwnPhases(idle, asyncio.run(alone))
    bench.say("  batch and interactive")
    return phases


def _lines(contest: Contest[MixedRun]) -> dict[str, Line]:
    at_most, at_least = Direction.AT_MOST, Direction.AT_LEAST
    line = contest.line
    return {
        **{
            f"ttft p{p}": line(f"interactive TTFT p{p}", "s", at_most, partial(MixedRun.ttft_s, percent=p))
            for p in (50, 95, 99)
        },
        "ttft worst": line("interactive TTFT worst", "s", at_most, lambda run: run.ttft_s(100)),
        "gap p50": line("interactive inter-token latency p50", "s", at_most, lambda run: run.gap_s(50)),
        "gap p95": line("interactive inter-token latency p95", "s", at_most, lambda run: run.gap_s(95)),
        "batch": line("batch output", "tok/s", at_least, lambda run: run.both.batch_output_per_s),
        "output": line("output, both classes", "tok/s", at_least, lambda run: run.both.output_per_s),
        "computed": line("computed, both classes", "tok/s", at_least, lambda run: run.both.computed_per_s),
        **{each.what: each for each in class_lines(contest, lambda run: run.both)},
    }


def class_lines(contest: Contest[T], window: Callable[[T], Window]) -> Iterator[Line]:
    def line(what: str, figure: Callable[[Window], float]) -> Line:
        return contest.line(what, "s", Direction.AT_MOST, lambda run: figure(window(run)))

    for p in (50, 95, 99):
        yield line(f"batch TTFT p{p}", partial(Window.ttft_s, priority=Priority.BATCH, percent=p))
    for priority in Priority:
        for p in (50, 95, 99):
            answer = partial(Window.answer_s, priority=priority, percent=p)
            yield line(f"{priority.value} whole answer p{p}", answer)


def _goals(contest: Contest[MixedRun], lines: dict[str, Line]) -> tuple[Goal, ...]:
    against = contest.goals_against_llama_server
    return (
        *against(lines["ttft p95"], "interactive TTFT p95", plain=40, best=25),
        *against(lines["output"], "output tokens/s of both classes", plain=1.1, best=1.1),
    )


def _own_goals(runs: list[MixedRun]) -> tuple[Goal, ...]:
    pairs = [(run, run.own) for run in runs if run.own is not None]
    p95 = Rounds.of(runs, lambda run: run.ttft_s(95))
    idle = Rounds.of(pairs, lambda pair: pair[1].idle_p50_s)
    both = Rounds.of(pairs, lambda pair: pair[0].both.computed_per_s)
    alone = Rounds.of(pairs, lambda pair: pair[1].alone.computed_per_s)
    return (
        Goal.at_most("interactive TTFT p95", p95, 1.0, "s"),
        Goal.at_most("interactive TTFT p95, against the idle server's p50", ratios(p95, idle), 2.0, "x"),
        Goal.at_least(
            "computed tokens/s of both classes, against the batch load alone",
            Rounds.of(ratios(both, alone).values, lambda share: 100 * share),
            90,
            "%",
        ),
    )


def _figures(runs: list[MixedRun]) -> tuple[Figure, ...]:
    pairs = [(run, run.own) for run in runs if run.own is not None]
    rows: tuple[tuple[str, str, Callable[[MixedRun, OwnPhases], float]], ...] = (
        ("ours, idle: TTFT p50", "s", lambda run, own: own.idle_p50_s),
        ("ours, batch alone: computed", "tok/s", lambda run, own: own.alone.computed_per_s),
        ("ours: interruptions of complete requests", "", lambda run, own: _sum(run, "interruptions")),
        ("ours: preemptions of complete requests", "", lambda run, own: _sum(run, "preemptions")),
    )
    return tuple(
        Figure(what=what, rounds=Rounds(tuple(figure(run, own) for run, own in pairs)), unit=unit)
        for what, unit, figure in rows
    )


def _sum(run: MixedRun, timing: str) -> float:
    return float(sum(getattr(trace.timings, timing) for trace in run.both.batch + run.both.interactive))
