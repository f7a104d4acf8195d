"""Common part of *chat*, *prefix* and *bursts*: a number of requests, timed from first to last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bench.asking import Ask, Trace, first_token_times
from bench.contest import Contest
from bench.load import Clients
from bench.prompts import Prompts
from bench.results import Direction, Line
from bench.servers import Server
from bench.stats import percentile


@dataclass(frozen=True)
class BatchRun:
    seconds: float
    traces: list[Trace]

    @property
    def requests_per_s(self) -> float:
        return len(self.traces) / self.seconds

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
        """Return a percentile of the inter-token latency; 100 is the longest stall after a first token."""
        gaps = [gap for trace in self.traces for gap in trace.gaps_s]
        return percentile(gaps, percent) if gaps else 0.0


def questions(prompts: Prompts, prompt_tokens: int, lengths: Sequence[int], *seed: object) -> list[Ask]:
    """Return a request per answer length, the same for every server. No two prompts share a prefix."""
    return [
        Ask(prompt=prompts.question(prompt_tokens, *seed, i), max_tokens=length, seed=i)
        for i, length in enumerate(lengths)
    ]


def clients_in_words(count: int) -> str:
    return f"{count} {'client' if count == 1 else 'clients'}"


def run_batch(server: Server, asks: Sequence[Ask], num_clients: int) -> BatchRun:
    """Run the requests in a closed loop. Raises LoadFailed."""
    return _run(server, lambda clients: clients.closed_loop(asks, num_clients))


def run_arrivals(server: Server, asks: Sequence[Ask], offsets: Sequence[float]) -> BatchRun:
    """Run the requests in an open loop. Raises LoadFailed."""
    return _run(server, lambda clients: clients.open_loop(asks, offsets))


def _run(server: Server, load: Callable[[Clients], Awaitable[None]]) -> BatchRun:
    clients = server.clients()

    async def timed() -> float:
        start = time.perf_counter()
        await load(clients)
        return time.perf_counter() - start

    seconds = asyncio.run(timed())
    clients.check()
    return BatchRun(seconds, clients.traces)


def output_line(contest: Contest[BatchRun]) -> Line:
    return contest.line("output", "tok/s", Direction.AT_LEAST, lambda run: run.output_tokens_per_s)


def requests_line(contest: Contest[BatchRun]) -> Line:
    return contest.line("requests", "1/s", Direction.AT_LEAST, lambda run: run.requests_per_s)


def latency_lines(contest: Contest[BatchRun]) -> tuple[Line, ...]:
    def line(what: str, figure: Callable[[BatchRun, float], float], percent: float) -> Line:
        return contest.line(what, "s", Direction.AT_MOST, lambda run: figure(run, percent))

    return (
        *(line(f"TTFT p{p}", BatchRun.ttft_s, p) for p in (50, 95)),
        *(line(f"inter-token latency p{p}", BatchRun.gap_s, p) for p in (50, 95)),
        line("worst stall", BatchRun.gap_s, 100),
    )
