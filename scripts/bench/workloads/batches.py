"""*chat*, *prefix*, *bursts* and *unequal*: a number of requests, timed from first to last."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from bench.bench import Bench
from bench.clients import Clients
from bench.prompts import Prompts, RandomPrompts
from bench.results import Contest, Direction, Line, WorkloadResult, percentile
from bench.servers import Contestant, Room, Server, Variant
from bench.traffic import BenchRequest, Trace, first_token_times

_ONE_AT_A_TIME = 16
"""Requests of *prefix* to a server that serves one at a time."""
_BURST_S = 1.0


@dataclass(frozen=True)
class BatchRun:
    seconds: float
    traces: list[Trace]

    @property
    def output_tokens(self) -> int:
        return sum(trace.output_tokens for trace in self.traces)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def cached_share(self) -> float:
        usages = [trace.usage for trace in self.traces if trace.usage is not None]
        return sum(u.cached_tokens for u in usages) / sum(u.prompt_tokens for u in usages)

    def ttft_s(self, percent: float) -> float:
        return percentile(first_token_times(self.traces), percent)

    def gap_s(self, percent: float) -> float:
        """Return a percentile of inter-token latency; 100 is the longest stall."""
        gaps = [gap for trace in self.traces for gap in trace.gaps_s]
        return percentile(gaps, percent) if gaps else 0.0


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int
    output_tokens: int
    pool_tokens: int = 16384
    shared_tokens: int = 0

    @property
    def room(self) -> Room:
        tokens = self.shared_tokens + self.prompt_tokens + self.output_tokens
        return Room(pool_tokens=self.pool_tokens, request_tokens=tokens)

    def bench_requests(self, prompts: Prompts, *seed: object) -> list[BenchRequest]:
        return questions(prompts, self.prompt_tokens, [self.output_tokens] * self.requests, *seed)


def questions(
    prompts: Prompts, prompt_tokens: int, lengths: Sequence[int], *seed: object
) -> list[BenchRequest]:
    """Return a request per answer length, equal for all servers, without shared prefixes."""
    return [
        BenchRequest(prompt=prompts.question(prompt_tokens, *seed, i), max_tokens=length, seed=i)
        for i, length in enumerate(lengths)
    ]


def clients_in_words(count: int) -> str:
    return f"{count} {'client' if count == 1 else 'clients'}"


def run_batch(server: Server, requests: Sequence[BenchRequest], num_clients: int) -> BatchRun:
    """Run a closed loop. Raises LoadFailed."""
    return _run(server, lambda clients: clients.closed_loop(requests, num_clients))


def _run(server: Server, load: Callable[[Clients], Awaitable[None]]) -> BatchRun:
    clients = server.clients()

    async def timed() -> float:
        start = time.perf_counter()
        await load(clients)
        return time.perf_counter() - start

    seconds = asyncio.run(timed())
    clients.check()
    return BatchRun(seconds, clients.traces)


def _output(contest: Contest[BatchRun]) -> Line:
    return contest.line("output", "tok/s", Direction.AT_LEAST, lambda run: run.output_tokens_per_s)


def _requests(contest: Contest[BatchRun]) -> Line:
    return contest.line("requests", "1/s", Direction.AT_LEAST, lambda run: len(run.traces) / run.seconds)


def _latencies(contest: Contest[BatchRun]) -> tuple[Line, ...]:
    return contest.seconds(
        {
            "TTFT p50": lambda run: run.ttft_s(50),
            "TTFT p95": lambda run: run.ttft_s(95),
            "inter-token latency p50": lambda run: run.gap_s(50),
            "inter-token latency p95": lambda run: run.gap_s(95),
            "worst stall": lambda run: run.gap_s(100),
        }
    )


def chat(bench: Bench) -> WorkloadResult:
    """Many short conversations at once."""
    size = Size(16, 8, 87, 24, 8192) if bench.is_quick else Size(24, 16, 173, 48, 8192)

    def measure(who: Contestant, number: int) -> BatchRun:
        with bench.start(who, size.room) as server:
            return run_batch(server, size.bench_requests(bench.prompts, "chat", number), size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.PLAIN_STEPS, Variant.STATIC)
    contest = bench.contest(contestants, measure)
    output, latencies, what = _output(contest), _latencies(contest), "output tokens/s"
    return WorkloadResult(
        name="chat",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        goals=(
            contest.goal_against(Variant.PLAIN_STEPS.key, output, what, 1.3),
            *contest.goals_against_llama_server(output, what, plain=1.5, best=1.5),
            contest.own_goal(latencies[-1], "worst stall", 0.8),
        ),
        lines=(output, _requests(contest), *latencies),
        failures=contest.failures,
    )


def prefix(bench: Bench) -> WorkloadResult:
    """One long prefix of all requests should be computed once."""
    size = Size(48, 16, 45, 16, shared_tokens=1080)
    if bench.is_quick:
        size = Size(24, 8, 22, 8, shared_tokens=540)

    def measure(who: Contestant, number: int) -> BatchRun:
        shared = bench.prompts.text(size.shared_tokens, "prefix", number)
        requests = [
            msgspec.structs.replace(request, prompt=shared + request.prompt)
            for request in size.bench_requests(bench.prompts, "own", number)
        ]
        if who.key == Variant.SEQUENTIAL.key:
            requests = requests[:_ONE_AT_A_TIME]
        with bench.start(who, size.room) as server:
            return run_batch(server, requests, size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.CACHE_OFF, Variant.SEQUENTIAL)
    contest, what = bench.contest(contestants, measure), "requests/s"
    rate = _requests(contest)
    cached = contest.those(lambda who: who.tells_cached).line(
        "cached share of prompt tokens", "%", Direction.AT_LEAST, lambda run: 100 * run.cached_share
    )
    return WorkloadResult(
        name="prefix",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.shared_tokens} shared + {size.prompt_tokens} own + {size.output_tokens} output tokens; "
        f"of {Variant.SEQUENTIAL.label!r} the first {min(_ONE_AT_A_TIME, size.requests)}",
        goals=(
            contest.goal_against(Variant.SEQUENTIAL.key, rate, what, 10),
            contest.goal_against(Variant.CACHE_OFF.key, rate, what, 5),
            contest.own_goal(cached, cached.what, 90),
            *contest.goals_against_llama_server(rate, what, plain=6, best=6),
        ),
        lines=(rate, cached, *_latencies(contest)),
        failures=contest.failures,
    )


def bursts(bench: Bench) -> WorkloadResult:
    """Many short requests arrive within a second at an idle server."""
    size = Size(100, 0, 20, 8, 8192) if bench.is_quick else Size(100, 0, 40, 16, 8192)

    def measure(who: Contestant, number: int) -> BatchRun:
        requests, draw = size.bench_requests(RandomPrompts(), "burst", number), random.Random(number)
        # Poisson arrivals of a fixed number: each is equally likely at any moment.
        offsets = sorted(draw.uniform(0, _BURST_S) for _ in requests)
        with bench.start(who, size.room) as server:
            return _run(server, lambda clients: clients.open_loop(requests, offsets))

    contest = bench.contest(bench.contestants(Variant.WHOLE, Variant.STATIC), measure)
    seconds = contest.seconds({"until all are answered": lambda run: run.seconds})
    return WorkloadResult(
        name="bursts",
        sizes=f"{size.requests} arrivals in {_BURST_S:g} s, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        lines=(*seconds, _output(contest), *_latencies(contest)),
        failures=contest.failures,
    )


def unequal(bench: Bench) -> WorkloadResult:
    """Short and long answers in halves; static batching waits for the longest."""
    short, long = ((2, 9), (60, 80)) if bench.is_quick else ((2, 9), (501, 600))
    size = Size(12, 4, 20, long[1]) if bench.is_quick else Size(24, 8, 40, long[1])

    def measure(who: Contestant, number: int) -> BatchRun:
        draw, ranges = random.Random(number), [short, long] * (size.requests // 2)
        draw.shuffle(ranges)
        lengths = [draw.randint(*each) for each in ranges]
        requests = questions(bench.prompts, size.prompt_tokens, lengths, "unequal", number)
        with bench.start(who, size.room) as server:
            return run_batch(server, requests, size.clients)

    def short_latency_s(run: BatchRun) -> float:
        ends = [(trace, trace.end) for trace in run.traces if trace.request.max_tokens <= short[1]]
        return percentile([end - trace.arrival for trace, end in ends if end is not None], 50)

    contest = bench.contest(bench.contestants(Variant.WHOLE, Variant.STATIC), measure)
    output = _output(contest)
    (waits,) = contest.seconds({"short answers, whole latency p50": short_latency_s})
    return WorkloadResult(
        name="unequal",
        sizes=f"{size.requests} requests, {size.clients} clients, {size.prompt_tokens} prompt tokens; half "
        f"have {short[0]} to {short[1]} output tokens, half {long[0]} to {long[1]}",
        goals=(
            contest.goal_against(Variant.STATIC.key, output, "output tokens/s", 1.0),
            contest.goal_against(Variant.STATIC.key, waits, "a short answer's latency", 4.0),
        ),
        lines=(output, _requests(contest), waits),
        failures=contest.failures,
    )
