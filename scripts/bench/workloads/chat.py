"""*chat*: many short conversations at once."""

from __future__ import annotations

from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest
from bench.contestants import Contestant, Room, Variant
from bench.prompts import Prompts
from bench.results import Goal, Line, WorkloadResult
from bench.workloads.batches import BatchRun, latency_lines, output_line, questions, requests_line, run_batch

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


FULL = Size(requests=24, clients=16, prompt_tokens=173, output_tokens=48)
QUICK = Size(requests=16, clients=8, prompt_tokens=87, output_tokens=24)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> BatchRun:
        with bench.start(who, size.room) as server:
            return run_batch(server, asks(bench.prompts, size, number), size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.PLAIN_STEPS, Variant.STATIC)
    contest = bench.contest(contestants, measure)
    output, latencies = output_line(contest), latency_lines(contest)
    return WorkloadResult(
        name="chat",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        goals=_goals(contest, output, latencies[-1]),
        lines=(output, requests_line(contest), *latencies),
        distributions=contest.distributions(lambda run: run.traces),
        failures=contest.failures,
    )


def asks(prompts: Prompts, size: Size, number: int) -> list[Ask]:
    return questions(prompts, size.prompt_tokens, [size.output_tokens] * size.requests, "chat", number)


def _goals(contest: Contest[BatchRun], output: Line, stall: Line) -> tuple[Goal, ...]:
    what = "output tokens/s"
    return (
        contest.goal_against(Variant.PLAIN_STEPS.key, output, what, 1.3),
        *contest.goals_against_llama_server(output, what, plain=1.5, best=1.5),
        contest.own_goal(stall, "worst stall", 0.8),
    )
