"""Load of *mixed*: endless batch clients, and interactive requests that arrive by the clock."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.asking import Ask, Priority, Trace, first_token_times
from bench.bench import Bench
from bench.contestants import Room
from bench.load import fixed_arrivals, poisson_arrivals
from bench.prompts import Prompts, about
from bench.servers import Server
from bench.stats import percentile

_MARGIN = 1.1
_PACE = 2.0
SHORTEST_S = 0.3
"""With a shorter interval the clients would be the limit."""


@dataclass(frozen=True)
class Size:
    idle_requests: int
    ramp_s: float
    """Time with batch clients alone before the window opens, because they all begin with prompts at once."""
    window_s: float
    every_s: float = 1.5
    """Mean interval between interactive requests. The other times grow with it."""
    batch_clients: int = 8
    batch_prompt: int = 400
    batch_output: int = 100
    short_prompt: int = 33
    short_output: int = 12
    pool_tokens: int = 8192

    @property
    def room(self) -> Room:
        longest = int(_MARGIN * self.batch_prompt + _MARGIN * self.batch_output) + 1
        return Room(pool_tokens=self.pool_tokens, request_tokens=longest)

    def paced(self, request_s: float) -> Size:
        """Return the load for a lone request of this time: longer intervals make all times longer, shorter
        ones add requests."""
        every_s = max(SHORTEST_S, round(_PACE * request_s, 2))
        slower = max(1.0, every_s / self.every_s)
        return replace(
            self,
            every_s=every_s,
            ramp_s=slower * self.ramp_s,
            window_s=slower * self.window_s,
        )


FULL = Size(idle_requests=10, ramp_s=10, window_s=40)
QUICK = Size(idle_requests=6, ramp_s=0.5, window_s=3, every_s=0.5)


@dataclass(frozen=True)
class Window:
    """Traces between `begin` and `end`."""

    begin: float
    end: float
    batch: list[Trace]
    interactive: list[Trace]

    @property
    def computed_per_s(self) -> float:
        traces = self.batch + self.interactive
        return sum(t.computed_tokens(self.begin, self.end) for t in traces) / (self.end - self.begin)

    @property
    def output_per_s(self) -> float:
        return self._output(self.batch + self.interactive)

    def traces(self, priority: Priority) -> list[Trace]:
        return self.interactive if priority is Priority.INTERACTIVE else self.batch

    def ttft_s(self, priority: Priority, percent: float) -> float:
        """Infinite if no request got a token, as in `answer_s`."""
        times = first_token_times(self.traces(priority))
        return percentile(times, percent) if times else math.inf

    def answer_s(self, priority: Priority, percent: float) -> float:
        times = [trace.end - trace.arrival for trace in self.traces(priority) if trace.end is not None]
        return percentile(times, percent) if times else math.inf

    @property
    def batch_output_per_s(self) -> float:
        return self._output(self.batch)

    def _output(self, traces: list[Trace]) -> float:
        return sum(t.output_within(self.begin, self.end) for t in traces) / (self.end - self.begin)


async def idle_requests(prompts: Prompts, size: Size, server: Server, number: int) -> list[Trace]:
    """Run interactive requests, one after the other. Raises LoadFailed."""
    clients = server.clients()
    asks = itertools.islice(interactive_asks(prompts, size, "idle", number), size.idle_requests)
    await clients.closed_loop(asks, 1)
    clients.check()
    return clients.traces


def median_s(traces: Sequence[Trace]) -> float:
    return statistics.median(trace.end - trace.arrival for trace in traces if trace.end is not None)


async def run_both(bench: Bench, size: Size, server: Server, number: int) -> Window:
    jobs, shorts = (
        batch_asks(bench.prompts, size, "both", number),
        interactive_asks(bench.prompts, size, "both", number),
    )
    return await run_window(size, server, jobs, shorts, window_arrivals(bench, size, number))


def window_arrivals(bench: Bench, size: Size, number: int) -> list[float]:
    if bench.by_clock:
        return fixed_arrivals(size.every_s, size.window_s)
    return poisson_arrivals(1 / size.every_s, size.window_s, seed=number)


async def run_window(
    size: Size,
    server: Server,
    jobs: Iterator[Ask],
    shorts: Iterator[Ask],
    offsets: Sequence[float],
) -> Window:
    """Run the load. Batch goes on until the last interactive request is answered, and is then cut off."""
    batch, interactive = server.clients(), server.clients()
    background = asyncio.create_task(batch.closed_loop(jobs, size.batch_clients))
    try:
        await asyncio.sleep(size.ramp_s)
        begin = time.perf_counter()
        await asyncio.gather(interactive.open_loop(shorts, offsets), asyncio.sleep(size.window_s))
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)
    batch.check()
    interactive.check()
    return Window(begin, begin + size.window_s, batch.traces, interactive.traces)


def batch_asks(prompts: Prompts, size: Size, phase: str, number: int) -> Iterator[Ask]:
    """Yield endless requests. Phases have the same lengths but other tokens, so no phase helps another."""
    for i in itertools.count():
        yield Ask(
            prompt=prompts.question(about(size.batch_prompt, "batch", i), phase, number, i),
            max_tokens=about(size.batch_output, "output", i),
            seed=i,
            priority=Priority.BATCH,
        )


def interactive_asks(prompts: Prompts, size: Size, phase: str, number: int) -> Iterator[Ask]:
    for i in itertools.count():
        yield Ask(
            prompt=prompts.question(about(size.short_prompt, "short", i), "short", phase, number, i),
            max_tokens=size.short_output,
            seed=i,
            priority=Priority.INTERACTIVE,
        )
