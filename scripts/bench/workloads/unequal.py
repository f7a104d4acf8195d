"""*unequal*: half of the answers are short and half are long. Static batching waits for the longest."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contestants import Contestant, Room, Variant
from bench.prompts import Prompts
from bench.results import Direction, WorkloadResult
from bench.stats import percentile
from bench.workloads.batches import BatchRun, output_line, questions, requests_line, run_batch

_POOL_TOKENS = 16384


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int
    short_tokens: tuple[int, int]
    long_tokens: tuple[int, int]

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + self.long_tokens[1])

    def output_tokens(self, number: int) -> list[int]:
        draw = random.Random(number)
        ranges = [self.short_tokens, self.long_tokens] * (self.requests // 2)
        draw.shuffle(ranges)
        return [draw.randint(*each) for each in ranges]


FULL = Size(requests=24, clients=8, prompt_tokens=40, short_tokens=(2, 9), long_tokens=(501, 600))
QUICK = Size(requests=12, clients=4, prompt_tokens=20, short_tokens=(2, 9), long_tokens=(60, 80))


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> BatchRun:
        with bench.start(who, size.room) as server:
            return run_batch(server, asks(bench.prompts, size, number), size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.STATIC)
    contest = bench.contest(contestants, measure)
    output = output_line(contest)
    what = "short answers, whole latency p50"
    waits = contest.line(what, "s", Direction.AT_MOST, lambda run: percentile(short_latencies(size, run), 50))
    return WorkloadResult(
        name="unequal",
        sizes=f"{size.requests} requests, {size.clients} clients, {size.prompt_tokens} prompt tokens; half "
        f"have {_span(size.short_tokens)} output tokens, half {_span(size.long_tokens)}",
        goals=(
            contest.goal_against(Variant.STATIC.key, output, "output tokens/s", 1.0),
            contest.goal_against(Variant.STATIC.key, waits, "a short answer's latency", 4.0),
        ),
        lines=(output, requests_line(contest), waits),
        distributions=contest.distributions(lambda run: run.traces),
        failures=contest.failures,
    )


def asks(prompts: Prompts, size: Size, number: int) -> list[Ask]:
    return questions(prompts, size.prompt_tokens, size.output_tokens(number), "unequal", number)


def short_latencies(size: Size, run: BatchRun) -> list[float]:
    short = [trace for trace in run.traces if trace.ask.max_tokens <= size.short_tokens[1]]
    return [trace.end - trace.arrival for trace in short if trace.end is not None]


def _span(limits: tuple[int, int]) -> str:
    return f"{limits[0]} to {limits[1]}"
