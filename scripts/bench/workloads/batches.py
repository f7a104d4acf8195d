"""What *chat* and *prefix* share: a fixed number of requests, k clients, timed from first to last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.asking import Ask, Trace, first_token_times
from bench.load import Clients
from bench.servers import Server
from bench.stats import percentile


@dataclass(frozen=True)
class BatchRun:
    """All traces are complete."""

    seconds: float
    traces: list[Trace]

    @property
    def requests_per_s(self) -> float:
        return len(self.traces) / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        return sum(trace.output_tokens for trace in self.traces) / self.seconds

    @property
    def cached_share(self) -> float:
        """Of all prompt tokens."""
        usages = [trace.usage for trace in self.traces if trace.usage is not None]
        return sum(u.cached_tokens for u in usages) / sum(u.prompt_tokens for u in usages)

    def ttft_s(self, percent: float) -> float:
        return percentile(first_token_times(self.traces), percent)

    @property
    def worst_stall_s(self) -> float:
        """Longest silence after a first token."""
        return max((gap for trace in self.traces for gap in trace.gaps_s), default=0.0)


def run_batch(server: Server, asks: Sequence[Ask], num_clients: int) -> BatchRun:
    """Raises LoadFailed."""
    clients = Clients(server.port)
    start = time.perf_counter()
    asyncio.run(clients.closed_loop(asks, num_clients))
    seconds = time.perf_counter() - start
    clients.check()
    return BatchRun(seconds, clients.traces)
