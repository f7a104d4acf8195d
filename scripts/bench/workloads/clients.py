"""*clients*: output tokens/s over the number of clients, with prompts that share nothing, and a server's
CPU use meanwhile (of ours: engine and API apart)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest, curves
from bench.contestants import Contestant, Room, Variant
from bench.process_tree import cpu_by_process
from bench.prompts import Prompts
from bench.results import Direction, Figure, Goal, Line, WorkloadResult
from bench.servers import Server
from bench.stats import Rounds
from bench.workloads.batches import BatchRun, clients_in_words, questions, run_batch

_POOL_TOKENS = 16384


@dataclass(frozen=True)
class Point:
    """Number of clients, with the factor by which our server should be faster than others."""

    clients: int
    openvino: float
    llama_server: float


@dataclass(frozen=True)
class Size:
    points: tuple[Point, ...]
    prompt_tokens: int
    output_tokens: int
    least_requests: int

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + self.output_tokens)

    def num_requests(self, clients: int) -> int:
        """Three for two clients: prompts are read while others decode."""
        return max(self.least_requests, 3 * clients // 2)


FULL = Size(
    (Point(1, 1.0, 1.0), Point(4, 1.0, 1.4), Point(16, 1.15, 1.4), Point(32, 1.15, 1.5)),
    prompt_tokens=165,
    output_tokens=48,
    least_requests=4,
)
QUICK = Size((Point(1, 1.0, 1.0), Point(8, 1.0, 1.4)), prompt_tokens=83, output_tokens=24, least_requests=4)


@dataclass(frozen=True)
class PointRun:
    """`first_s` and `others_s`: CPU seconds of a server's first process, and of those that it has started."""

    batch: BatchRun
    first_s: float
    others_s: float

    @property
    def cores(self) -> float:
        return (self.first_s + self.others_s) / self.batch.seconds


Runs = dict[int, PointRun]


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    counts = [point.clients for point in size.points]

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, size.room) as server:
            return {k: _measure(server, asks(bench.prompts, size, number, k), k) for k in counts}

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    lines = {point: _line(contest, point.clients) for point in size.points}
    return WorkloadResult(
        name="clients",
        sizes=f"{', '.join(map(str, counts))} clients, {size.prompt_tokens} + {size.output_tokens} tokens, "
        f"three requests for two clients and {size.least_requests} at least; "
        "CPU seconds of all processes of a server over those of the clock",
        goals=tuple(goal for point, line in lines.items() for goal in _goals(contest, point, line)),
        lines=(*lines.values(), *(_cpu_line(contest, clients) for clients in counts)),
        curves=curves({point.clients: line for point, line in lines.items()}),
        figures=contest.of_ours("figures", lambda runs: tuple(_apart(runs, counts))),
        failures=contest.failures,
    )


def asks(prompts: Prompts, size: Size, number: int, clients: int) -> list[Ask]:
    lengths = [size.output_tokens] * size.num_requests(clients)
    return questions(prompts, size.prompt_tokens, lengths, "clients", number, clients)


def _measure(server: Server, asked: Sequence[Ask], clients: int) -> PointRun:
    before = cpu_by_process(server.pid)
    batch = run_batch(server, asked, clients)
    used = {pid: spent - before.get(pid, 0.0) for pid, spent in cpu_by_process(server.pid).items()}
    return PointRun(batch, used.pop(server.pid), sum(used.values()))


def _line(contest: Contest[Runs], clients: int) -> Line:
    what = f"output, {clients_in_words(clients)}"
    at_least = Direction.AT_LEAST
    return contest.line(what, "tok/s", at_least, lambda runs: runs[clients].batch.output_tokens_per_s)


def _cpu_line(contest: Contest[Runs], clients: int) -> Line:
    what = f"CPU, {clients_in_words(clients)}"
    return contest.line(what, "cores", Direction.AT_MOST, lambda runs: runs[clients].cores)


def _apart(runs: list[Runs], counts: Sequence[int]) -> Iterator[Figure]:
    for clients in counts:
        points = [run[clients] for run in runs]
        for what, unit, figure in (
            ("engine", "cores", lambda run: run.others_s / run.batch.seconds),
            ("API", "cores", lambda run: run.first_s / run.batch.seconds),
            ("API", "ms of CPU a token", lambda run: 1000 * run.first_s / run.batch.output_tokens),
        ):
            rounds = Rounds.of(points, figure)
            yield Figure(what=f"ours: {what}, {clients_in_words(clients)}", rounds=rounds, unit=unit)


def _goals(contest: Contest[Runs], point: Point, line: Line) -> tuple[Goal, ...]:
    what = f"{line.what} tokens/s"
    return (
        contest.goal_against("openvino", line, what, point.openvino),
        *contest.goals_against_llama_server(line, what, plain=point.llama_server, best=point.llama_server),
    )
