"""*long prompt*: stalls of streams while a long prompt arrives. *prompt-N*: speed of reading N tokens
alone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.bench import Bench
from bench.clients import Clients, LoadFailed
from bench.prompts import Prompts
from bench.results import Direction, WorkloadResult, percentile
from bench.servers import SLOTS, Contestant, Room, Server, Variant
from bench.traffic import BenchRequest, Trace

_POOL_TOKENS = 16384
_POLL_S = 0.02
_REPEATS = 2
_CALM_TOKENS = 8
_START_S = 300.0


@dataclass(frozen=True)
class Size:
    long_tokens: int
    streams: int = 8
    stream_prompt: int = 64
    stream_output: int = 600
    long_output: int = 8

    @property
    def room(self) -> Room:
        longest = max(self.long_tokens + self.long_output, self.stream_prompt + self.stream_output)
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=longest, at_once=SLOTS if self.streams else 1)


QUICK_ALONE = Size(long_tokens=500, streams=0)
FULL = Size(long_tokens=4000)
QUICK = Size(long_tokens=1000)


@dataclass(frozen=True)
class Passage:
    long: Trace
    streams: list[Trace]
    end: float

    def gap_s(self, percent: float) -> float:
        gaps: list[float] = []
        for trace in self.streams:
            last = [] if trace.is_complete else [self.end]
            times = [t for t in trace.chunk_times if t <= self.end] + last
            gaps += [b - a for a, b in pairwise(times) if b > self.long.arrival]
        return percentile(gaps, percent)

    @property
    def calm_s(self) -> float:
        before = [
            b - a for trace in self.streams for a, b in pairwise(trace.chunk_times) if b <= self.long.arrival
        ]
        return percentile(before, 50)


def run(bench: Bench) -> WorkloadResult:
    return _run(bench, "long-prompt", QUICK if bench.is_quick else FULL)


def run_beside_16(bench: Bench) -> WorkloadResult:
    """Use as many streams as slots. A hybrid memory cuts steps of unequal parts."""
    return _run(bench, "long-prompt-16", replace(QUICK if bench.is_quick else FULL, streams=16))


def run_alone(num_tokens: int, bench: Bench) -> WorkloadResult:
    size = QUICK_ALONE if bench.is_quick else Size(long_tokens=num_tokens, streams=0)

    def measure(who: Contestant, number: int) -> float:
        with bench.start(who, size.room) as server:
            return min(asyncio.run(_alone(bench.prompts, size, server, (number, i))) for i in range(_REPEATS))

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    what = f"prompt of {size.long_tokens} tokens"
    line = contest.line(what, "tok/s", Direction.AT_LEAST, lambda seconds: size.long_tokens / seconds)
    return WorkloadResult(
        name=f"prompt-{num_tokens}",
        sizes=f"prompts of {size.long_tokens} tokens that share nothing, one after the other: the best of "
        f"{_REPEATS}, up to its first token",
        goals=contest.goals_against_llama_server(line, what, plain=1.5, best=1.5),
        lines=(line,),
        failures=contest.failures,
    )


async def _alone(prompts: Prompts, size: Size, server: Server, seed: tuple[int, int]) -> float:
    client = server.clients()
    trace = await client.send(_long(prompts, size, *seed))
    client.check()
    if trace.ttft_s is None:
        raise LoadFailed("the prompt got no answer")
    return trace.ttft_s


def _run(bench: Bench, name: str, size: Size) -> WorkloadResult:
    def measure(who: Contestant, number: int) -> Passage:
        with bench.start(who, size.room) as server:
            return asyncio.run(_measure(bench.prompts, size, server, number))

    contestants = bench.contestants(Variant.WHOLE, Variant.PLAIN_STEPS)
    contest = bench.contest(contestants, measure)
    lines = contest.seconds(
        {
            "worst stall of the streams": lambda passage: passage.gap_s(100),
            "inter-token latency p95 meanwhile": lambda passage: passage.gap_s(95),
            "inter-token latency p50 before": lambda passage: passage.calm_s,
            "TTFT of the long prompt": lambda passage: passage.long.ttft_s or 0.0,
        }
    )
    against = contest.goals_against_llama_server
    return WorkloadResult(
        name=name,
        sizes=f"{size.streams} streams run when a prompt of {size.long_tokens} tokens arrives",
        goals=(
            contest.own_goal(lines[0], "worst stall", 0.8),
            *against(lines[-1], "TTFT of the long prompt", plain=1 / 1.2, best=1 / 1.2),
        ),
        lines=lines,
        failures=contest.failures,
    )


async def _measure(prompts: Prompts, size: Size, server: Server, number: int) -> Passage:
    streams, one = server.clients(), server.clients()
    requests = [
        BenchRequest(
            prompt=prompts.question(size.stream_prompt, "stream", number, i),
            max_tokens=size.stream_output,
            seed=i,
        )
        for i in range(size.streams)
    ]
    async with streams.endless(requests, size.streams):
        try:
            await asyncio.wait_for(_calm(size, streams), _START_S)
        except asyncio.TimeoutError:
            raise LoadFailed(f"{size.streams} streams did not begin within {_START_S:g} s") from None
        long = await one.send(_long(prompts, size, number))
    one.check()
    if long.end is None or long.ttft_s is None:
        raise LoadFailed("the long prompt got no answer")
    return Passage(long, streams.traces, long.end)


async def _calm(size: Size, streams: Clients) -> None:
    """Wait until all stream, or as many as run at once if one of those has progressed far."""
    counts: list[int] = []
    while not (
        (len(counts) == size.streams and min(counts) >= _CALM_TOKENS)
        or max(counts, default=0) >= size.stream_output // 4
    ):
        streams.check()
        await asyncio.sleep(_POLL_S)
        counts = [len(trace.chunk_times) for trace in streams.traces]


def _long(prompts: Prompts, size: Size, *seed: int) -> BenchRequest:
    return BenchRequest(prompt=prompts.question(size.long_tokens, "long", *seed), max_tokens=size.long_output)
