"""*chat*: many short conversations at once."""

from __future__ import annotations

from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest
from bench.contestants import Contestant, Room, Variant
from bench.limit.work import Request, Work
from bench.prompts import Prompts
from bench.results import Goal, Line, WorkloadResult
from bench.workloads.batches import BatchRun, latency_lines, output_line, requests_line, run_batch

_POOL_TOKENS = 8192


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int
    output_tokens: int

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + self.output_tokens)

    @property
    def work(self) -> Work:
        request = Request(prompt=self.prompt_tokens, output=self.output_tokens)
        return Work(clients=self.clients, requests=(request,) * self.requests)


FULL = Size(requests=32, clients=16, prompt_tokens=173, output_tokens=48)
QUICK = Size(requests=16, clients=8, prompt_tokens=87, output_tokens=24)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> BatchRun:
        with bench.start(who, size.room) as server:
            return run_batch(server, asks(bench.prompts, size, number), size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.PLAIN_STEPS, Variant.STATIC)
    contest = bench.contest(contestants, measure, lambda *_: [size.work])
    output = output_line(contest)
    return WorkloadResult(
        name="chat",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        goals=_goals(contest, output),
        lines=(output, requests_line(contest), *latency_lines(contest)),
        distributions=contest.distributions(lambda run: run.traces),
        failures=contest.failures,
        notes=contest.notes,
    )


def asks(prompts: Prompts, size: Size, number: int) -> list[Ask]:
    """The requests of one round; every server gets the same."""
    return [
        Ask(
            prompt=prompts.question(size.prompt_tokens, "chat", number, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.requests)
    ]


def _goals(contest: Contest[BatchRun], output: Line) -> tuple[Goal, ...]:
    what = "output tokens/s"
    return (
        contest.goal_against(Variant.PLAIN_STEPS.key, output, what, 1.3),
        *contest.goals_against_llama_server(output, what, plain=1.7, best=1.2),
        contest.goal_of_limit(output, what, 95),
    )
