"""*clients*: output tokens/s over the number of clients, without shared prompts, and the server's CPU use (of
ours: engine and API apart)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.bench import Bench
from bench.results import Contest, Direction, Figure, Goal, Line, Rounds, WorkloadResult
from bench.servers import Contestant, Room, Server, Variant, cpu_by_process
from bench.workloads.batches import BatchRun, clients_in_words, questions, run_batch

_POOL_TOKENS = 16384
_LEAST_REQUESTS = 4


@dataclass(frozen=True)
class Point:
    """Number of clients, and the factor by which ours should be faster."""

    clients: int
    openvino: float
    llama_server: float


FULL = (Point(1, 1.0, 1.0), Point(4, 1.0, 1.4), Point(16, 1.15, 1.4), Point(32, 1.15, 1.5))
QUICK = (Point(1, 1.0, 1.0), Point(8, 1.0, 1.4))


@dataclass(frozen=True)
class PointRun:
    """`first_s` and `others_s`: CPU seconds of a server's first process, and of its children."""

    batch: BatchRun
    first_s: float
    others_s: float

    @property
    def cores(self) -> float:
        return (self.first_s + self.others_s) / self.batch.seconds


Runs = dict[int, PointRun]


def run(bench: Bench) -> WorkloadResult:
    points, prompt_tokens, output_tokens = (QUICK, 83, 24) if bench.is_quick else (FULL, 165, 48)
    counts = [point.clients for point in points]
    room = Room(pool_tokens=_POOL_TOKENS, request_tokens=prompt_tokens + output_tokens)

    def measure_point(server: Server, clients: int, number: int) -> PointRun:
        """Use three requests for two clients: prompts are read while others decode."""
        lengths = [output_tokens] * max(_LEAST_REQUESTS, 3 * clients // 2)
        requests = questions(bench.prompts, prompt_tokens, lengths, "clients", number, clients)
        before = cpu_by_process(server.pid)
        batch = run_batch(server, requests, clients)
        used = {pid: spent - before.get(pid, 0.0) for pid, spent in cpu_by_process(server.pid).items()}
        return PointRun(batch, used.pop(server.pid), sum(used.values()))

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, room) as server:
            return {clients: measure_point(server, clients, number) for clients in counts}

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    lines = {point: _line(contest, point.clients) for point in points}
    return WorkloadResult(
        name="clients",
        sizes=f"{', '.join(map(str, counts))} clients, {prompt_tokens} + {output_tokens} tokens, "
        f"three requests for two clients and {_LEAST_REQUESTS} at least; "
        "CPU seconds of all processes of a server over those of the clock",
        goals=tuple(goal for point, line in lines.items() for goal in _goals(contest, point, line)),
        lines=(*lines.values(), *(_cpu_line(contest, clients) for clients in counts)),
        figures=contest.of_ours("figures", lambda runs: tuple(_apart(runs, counts))),
        failures=contest.failures,
    )


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
