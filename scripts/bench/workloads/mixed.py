"""*mixed*: interactive requests arrive by the clock while batch clients keep the machine full."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Trace, first_token_times
from bench.bench import Bench
from bench.contest import OURS, Contest
from bench.contestants import Contestant, Variant
from bench.results import Direction, Figure, Goal, Line, WorkloadResult
from bench.servers import Server
from bench.stats import Rounds, percentile, ratio
from bench.timeline import StepLog, Timeline
from bench.workloads.mixed_load import (
    FULL,
    POOL_TOKENS,
    QUICK,
    Size,
    Window,
    batch_asks,
    interactive_asks,
    run_both,
    run_window,
)


@dataclass(frozen=True)
class OwnPhases:
    """Before the window, of our own server only."""

    idle: list[Trace]
    alone: Window

    @property
    def idle_p50_s(self) -> float:
        return percentile(first_token_times(self.idle), 50)


@dataclass(frozen=True)
class MixedRun:
    both: Window
    own: OwnPhases | None = None

    def ttft_s(self, percent: float) -> float:
        return percentile(first_token_times(self.both.interactive), percent)

    def gap_s(self, percent: float) -> float:
        return percentile([gap for trace in self.both.interactive for gap in trace.gaps_s], percent)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> MixedRun:
        with bench.start(who, size.room) as server:
            phases = asyncio.run(_own_phases(bench, size, server, number)) if who.key == OURS else None
            return MixedRun(asyncio.run(run_both(bench, size, server, number)), phases)

    contestants = bench.contestants(Variant.WHOLE, Variant.FIFO)
    contest = bench.contest(contestants, measure, lambda so_far, _: size.works(_batch_per_s(so_far)))
    lines = _lines(contest)
    own = next((runs for who, runs in contest.runs.items() if who.key == OURS), [])
    return WorkloadResult(
        name="mixed",
        sizes=f"{size.batch_clients} batch clients, about {size.batch_prompt} + {size.batch_output} tokens; "
        f"interactive about {size.short_prompt} + {size.short_output} tokens every {size.every_s} s "
        f"{'on average, at random' if bench.is_poisson else 'by the clock'}, whatever happens; "
        f"window of {size.window_s:g} s",
        goals=(*_own_goals(own), *_goals(contest, lines)),
        lines=tuple(lines.values()),
        distributions=contest.distributions(lambda run: run.both.interactive),
        figures=_figures(own),
        timeline=timeline(bench, size) if own else None,
        failures=contest.failures,
        notes=contest.notes,
    )


async def _own_phases(bench: Bench, size: Size, server: Server, number: int) -> OwnPhases:
    """Idle, then batch alone."""
    bench.say("  idle")
    idle = server.clients()
    await idle.closed_loop(itertools.islice(interactive_asks(size, "idle", number), size.idle_requests), 1)
    idle.check()
    bench.say("  batch alone")
    alone = await run_window(size, server, batch_asks(size, "alone", number), iter(()), [])
    bench.say("  batch and interactive")
    return OwnPhases(idle.traces, alone)


def timeline(bench: Bench, size: Size) -> Timeline:
    """One more run, of which every step is written down: that costs time, so it is not measured."""
    bench.say("once more, with a log of its steps")
    log = StepLog()
    options = ("--ctx-size", str(POOL_TOKENS), "--log-level", "debug", "--log-format", "json")
    with bench.server(Variant.WHOLE, *options, on_line=log.note) as server:
        window = asyncio.run(run_both(bench, size, server, bench.rounds))
    return log.timeline(window.begin, window.begin + size.shown_s, window.interactive)


def _batch_per_s(contest: Contest[MixedRun]) -> float:
    """Of the first who was measured, ours as a rule: the bare loop gets the classes as they were mixed."""
    return next((runs[-1].both.batch_output_per_s for runs in contest.runs.values() if runs), 0.0)


def _lines(contest: Contest[MixedRun]) -> dict[str, Line]:
    """By short names."""
    at_most, at_least = Direction.AT_MOST, Direction.AT_LEAST
    line = contest.line
    return {
        "ttft p50": line("interactive TTFT p50", "s", at_most, lambda run: run.ttft_s(50)),
        "ttft p95": line(
            "interactive TTFT p95", "s", at_most, lambda run: run.ttft_s(95), lambda loops: loops[1].seconds
        ),
        "ttft worst": line("interactive TTFT worst", "s", at_most, lambda run: run.ttft_s(100)),
        "gap p50": line("interactive inter-token latency p50", "s", at_most, lambda run: run.gap_s(50)),
        "gap p95": line("interactive inter-token latency p95", "s", at_most, lambda run: run.gap_s(95)),
        "batch": line("batch output", "tok/s", at_least, lambda run: run.both.batch_output_per_s),
        "output": line(
            "output, both classes",
            "tok/s",
            at_least,
            lambda run: run.both.output_per_s,
            lambda loops: loops[0].output_tokens_per_s,
        ),
        "computed": line("computed, both classes", "tok/s", at_least, lambda run: run.both.computed_per_s),
    }


def _goals(contest: Contest[MixedRun], lines: dict[str, Line]) -> tuple[Goal, ...]:
    against = contest.goals_against_llama_server
    return (
        *against(lines["ttft p95"], "interactive TTFT p95", plain=40, best=25),
        *against(lines["output"], "output tokens/s of both classes", plain=1.2, best=1.0),
    )


def _own_goals(runs: list[MixedRun]) -> tuple[Goal, ...]:
    """Against the same server without company."""
    pairs = [(run, run.own) for run in runs if run.own is not None]
    if not pairs:
        return ()
    p95 = Rounds(tuple(run.ttft_s(95) for run, _ in pairs))
    idle = Rounds(tuple(own.idle_p50_s for _, own in pairs))
    both = Rounds(tuple(run.both.computed_per_s for run, _ in pairs))
    alone = Rounds(tuple(own.alone.computed_per_s for _, own in pairs))
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
    """Of our own server."""
    pairs = [(run, run.own) for run in runs if run.own is not None]
    if not pairs:
        return ()
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
