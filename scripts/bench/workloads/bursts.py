"""*bursts*: many short requests arrive within a second at an idle server."""

from __future__ import annotations

import random
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.contestants import Contestant, Room, Variant
from bench.prompts import RandomPrompts
from bench.results import Direction, WorkloadResult
from bench.workloads.batches import BatchRun, latency_lines, output_line, questions, run_arrivals

_POOL_TOKENS = 8192
_WITHIN_S = 1.0


@dataclass(frozen=True)
class Size:
    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + self.output_tokens)


FULL = Size(requests=100, prompt_tokens=40, output_tokens=16)
QUICK = Size(requests=100, prompt_tokens=20, output_tokens=8)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> BatchRun:
        with bench.start(who, size.room) as server:
            return run_arrivals(server, asks(size, number), arrivals(size, number))

    contest = bench.contest(bench.contestants(Variant.WHOLE, Variant.STATIC), measure)
    seconds = contest.line("until all are answered", "s", Direction.AT_MOST, lambda run: run.seconds)
    return WorkloadResult(
        name="bursts",
        sizes=f"{size.requests} arrivals in {_WITHIN_S:g} s, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        lines=(seconds, output_line(contest), *latency_lines(contest)),
        distributions=contest.distributions(lambda run: run.traces),
        failures=contest.failures,
    )


def asks(size: Size, number: int) -> list[Ask]:
    lengths = [size.output_tokens] * size.requests
    return questions(RandomPrompts(), size.prompt_tokens, lengths, "burst", number)


def arrivals(size: Size, number: int) -> list[float]:
    """Return Poisson arrivals of a fixed number, so each is equally likely at any moment."""
    draw = random.Random(number)
    return sorted(draw.uniform(0, _WITHIN_S) for _ in range(size.requests))
