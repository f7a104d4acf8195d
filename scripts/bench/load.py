"""Closed loop (k clients that ask again once answered) and open loop (arrivals by the clock)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Iterator, Sequence

from bench.asking import Ask, Trace
from bench.dialect import OURS, Dialect
from bench.failures import Failed
from bench.http_client import stream


class LoadFailed(Failed): ...


class Clients:
    """Clients of one server. `traces` also has requests that were cut off."""

    def __init__(self, port: int, dialect: Dialect = OURS) -> None:
        self._port = port
        self._dialect = dialect
        self.traces: list[Trace] = []

    async def send(self, ask: Ask, arrival: float | None = None) -> Trace:
        trace = Trace(ask, time.perf_counter() if arrival is None else arrival)
        self.traces.append(trace)
        await stream(self._port, trace, self._dialect)
        return trace

    async def closed_loop(self, asks: Iterable[Ask], num_clients: int) -> None:
        """Ask until `asks` ends. A client whose request fails asks no more."""
        source = iter(asks)
        await asyncio.gather(*(self._ask_all(source) for _ in range(num_clients)))

    async def open_loop(self, asks: Iterable[Ask], offsets: Sequence[float]) -> None:
        """Send each request at its offset from now, whatever the server does, and wait for all answers."""
        start = time.perf_counter()
        pairs = zip(asks, offsets, strict=False)
        await asyncio.gather(*(self._send_at(ask, start + offset) for ask, offset in pairs))

    def check(self) -> None:
        """Check success and token counts, except of answers that end themselves. Raises LoadFailed."""
        for trace in self.traces:
            if trace.error is not None:
                raise LoadFailed(trace.error)
            is_fixed = not trace.ask.ends_itself
            if is_fixed and trace.is_complete and trace.output_tokens != trace.ask.max_tokens:
                raise LoadFailed(f"{trace.output_tokens} output tokens instead of {trace.ask.max_tokens}")

    async def _ask_all(self, source: Iterator[Ask]) -> None:
        for ask in source:
            trace = await self.send(ask)
            if trace.error is not None:
                return

    async def _send_at(self, ask: Ask, arrival: float) -> None:
        await asyncio.sleep(max(0.0, arrival - time.perf_counter()))
        await self.send(ask, arrival)


def fixed_arrivals(every_s: float, until_s: float) -> list[float]:
    return [i * every_s for i in range(int(until_s / every_s) + 1) if i * every_s < until_s]


def poisson_arrivals(per_s: float, until_s: float, seed: int) -> list[float]:
    """Return offsets below until_s, with exponential gaps of 1 / per_s on average."""
    draw = random.Random(seed)
    offsets: list[float] = []
    now = draw.expovariate(per_s)
    while now < until_s:
        offsets.append(now)
        now += draw.expovariate(per_s)
    return offsets
