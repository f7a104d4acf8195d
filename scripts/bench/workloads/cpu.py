"""*cpu*: what a server takes of the cores while 1, 4 and 8 clients are answered, engine and API apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest
from bench.contestants import Contestant, Variant
from bench.process_tree import cpu_by_process
from bench.results import Direction, Figure, Line, WorkloadResult
from bench.servers import Server
from bench.stats import Rounds
from bench.workloads.batches import BatchRun, run_batch
from bench.workloads.clients import Point, Size, asks

_POINTS = tuple(Point(count, 1.0, 1.0) for count in (1, 4, 8))
FULL = Size(_POINTS, prompt_tokens=165, output_tokens=48, least_requests=4)
QUICK = Size(_POINTS, prompt_tokens=20, output_tokens=8, least_requests=2)


@dataclass(frozen=True)
class CpuRun:
    """CPU seconds of a server's first process, and of those that it has started."""

    batch: BatchRun
    first_s: float
    others_s: float

    @property
    def cores(self) -> float:
        return (self.first_s + self.others_s) / self.batch.seconds

    @property
    def output_tokens(self) -> int:
        return sum(trace.output_tokens for trace in self.batch.traces)


Runs = dict[int, CpuRun]
"""By clients."""


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    counts = [point.clients for point in size.points]

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, size.room) as server:
            return {k: _measure(server, asks(bench.prompts, size, number, k), k) for k in counts}

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    return WorkloadResult(
        name="cpu",
        sizes=f"{', '.join(map(str, counts))} clients, {size.prompt_tokens} + {size.output_tokens} tokens; "
        "CPU seconds of all processes of a server over those of the clock",
        lines=tuple(line for clients in counts for line in _lines(contest, clients)),
        figures=contest.of_ours("figures", lambda runs: tuple(_apart(runs, counts))),
        failures=contest.failures,
    )


def _measure(server: Server, asked: Sequence[Ask], clients: int) -> CpuRun:
    before = cpu_by_process(server.pid)
    batch = run_batch(server, asked, clients)
    used = {pid: spent - before.get(pid, 0.0) for pid, spent in cpu_by_process(server.pid).items()}
    return CpuRun(batch, used.pop(server.pid), sum(used.values()))


def _lines(contest: Contest[Runs], clients: int) -> Iterator[Line]:
    who = f"{clients} {'client' if clients == 1 else 'clients'}"
    yield contest.line(f"CPU, {who}", "cores", Direction.AT_MOST, lambda runs: runs[clients].cores)
    yield contest.line(
        f"output, {who}",
        "tok/s",
        Direction.AT_LEAST,
        lambda runs: runs[clients].batch.output_tokens_per_s,
    )


def _apart(runs: list[Runs], counts: Sequence[int]) -> Iterator[Figure]:
    """Our API, which is the first process, and our engine, which it starts."""
    for clients in counts:
        points = [run[clients] for run in runs]
        for what, unit, figure in (
            ("engine", "cores", lambda run: run.others_s / run.batch.seconds),
            ("API", "cores", lambda run: run.first_s / run.batch.seconds),
            ("API", "ms of CPU a token", lambda run: 1000 * run.first_s / run.output_tokens),
        ):
            yield Figure(
                what=f"ours: {what}, clients: {clients}", rounds=Rounds.of(points, figure), unit=unit
            )
