"""*clients*: output tokens/s over the number of clients, with prompts that share nothing."""

from __future__ import annotations

from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest, curves
from bench.contestants import Contestant, Room, Variant
from bench.prompts import Prompts
from bench.results import Direction, Goal, Line, WorkloadResult
from bench.workloads.batches import BatchRun, run_batch

_POOL_TOKENS = 16384


@dataclass(frozen=True)
class Point:
    """A number of clients, and how many times as fast as others our server is to be there."""

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

Runs = dict[int, BatchRun]
"""By clients."""


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    counts = [point.clients for point in size.points]

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, size.room) as server:
            return {k: run_batch(server, asks(bench.prompts, size, number, k), k) for k in counts}

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    lines = {point: _line(contest, point.clients) for point in size.points}
    return WorkloadResult(
        name="clients",
        sizes=f"{', '.join(map(str, counts))} clients, {size.prompt_tokens} + {size.output_tokens} tokens, "
        f"three requests for two clients and {size.least_requests} at least",
        goals=tuple(goal for point, line in lines.items() for goal in _goals(contest, point, line)),
        lines=tuple(lines.values()),
        curves=curves({point.clients: line for point, line in lines.items()}),
        failures=contest.failures,
    )


def asks(prompts: Prompts, size: Size, number: int, clients: int) -> list[Ask]:
    """The requests of one point; every server gets the same."""
    return [
        Ask(
            prompt=prompts.question(size.prompt_tokens, "clients", number, clients, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.num_requests(clients))
    ]


def _line(contest: Contest[Runs], clients: int) -> Line:
    return contest.line(
        f"output, {clients} {'client' if clients == 1 else 'clients'}",
        "tok/s",
        Direction.AT_LEAST,
        lambda runs: runs[clients].output_tokens_per_s,
    )


def _goals(contest: Contest[Runs], point: Point, line: Line) -> tuple[Goal, ...]:
    what = f"{line.what} tokens/s"
    return (
        contest.goal_against("openvino", line, what, point.openvino),
        *contest.goals_against_llama_server(line, what, plain=point.llama_server, best=point.llama_server),
    )
