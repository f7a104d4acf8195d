"""*memory*: KV cells that requests with a common prefix hold, against a full context for each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.cache_stats import CacheStats, Pool, cache_stats
from bench.load import Clients, LoadFailed
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Variant
from bench.stats import Rounds

_SERVER = ("--ctx-size", "16384", "--kv-type", "f16")
_POLL_S = 0.02
_CONTEXT = 4096
"""Tokens of the full context that a server with fixed slots sets aside for each request."""
_MB = 1e6


@dataclass(frozen=True)
class Size:
    requests: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int


FULL = Size(requests=8, shared_tokens=1000, own_tokens=40, output_tokens=60)
QUICK = Size(requests=8, shared_tokens=1000, own_tokens=20, output_tokens=20)


class _Peak:
    """The most of each that there was at once; `pool`: at the moment when most cells were held."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.cache_bytes = 0
        self.running = 0

    async def watch(self, port: int) -> None:
        """Until it is cancelled. Raises HttpFailed."""
        while True:
            self.note(await cache_stats(port))
            await asyncio.sleep(_POLL_S)

    def note(self, stats: CacheStats) -> None:
        if stats.pool and (self.pool is None or stats.pool.used.bytes > self.pool.used.bytes):
            self.pool = stats.pool
        if stats.cache:
            self.cache_bytes = max(self.cache_bytes, stats.cache.used.bytes)
        if stats.savings:
            self.running = max(self.running, stats.savings.running_requests)

    @property
    def held(self) -> Pool:
        """Raises LoadFailed if nothing was ever seen."""
        if self.pool is None or not self.pool.used.tokens:
            raise LoadFailed("the requests were over before their cells could be counted")
        return self.pool


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(number: int) -> _Peak:
        with bench.server(Variant.WHOLE, *_SERVER) as server:
            return asyncio.run(_measure(size, server.port, number))

    peaks = bench.interleaved({Variant.WHOLE: measure})[Variant.WHOLE]
    return WorkloadResult(
        name="memory",
        sizes=f"{size.requests} requests, {size.shared_tokens} shared + {size.own_tokens} own "
        f"+ {size.output_tokens} output tokens",
        goals=(_goal(_each(peaks, lambda peak: _saved_percent(size, peak))),),
        figures=_figures(size, peaks),
    )


def _saved_percent(size: Size, peak: _Peak) -> float:
    return 100 * (1 - peak.held.used.bytes / _full_bytes(size, peak))


def _full_bytes(size: Size, peak: _Peak) -> float:
    return size.requests * _CONTEXT * peak.held.total.bytes / peak.held.total.tokens


def _goal(saved: Rounds) -> Goal:
    return Goal(
        what=f"bytes of KV cells saved at peak, against a context of {_CONTEXT} for each request",
        measured=saved.median,
        direction=Direction.AT_LEAST,
        limit=72,
        unit="%",
    )


def _figures(size: Size, peaks: list[_Peak]) -> tuple[Figure, ...]:
    unshared = size.requests * (size.shared_tokens + size.own_tokens + size.output_tokens)
    rows: tuple[tuple[str, str, Callable[[_Peak], float]], ...] = (
        ("pool, held at peak", "MB", lambda peak: peak.held.used.bytes / _MB),
        ("full contexts", "MB", lambda peak: _full_bytes(size, peak) / _MB),
        ("pool, cells held at peak", "", lambda peak: peak.held.used.tokens),
        ("of these, shared", "", lambda peak: peak.held.shared.tokens),
        ("cells without sharing", "", lambda _: unshared),
        ("requests that ran at once", "", lambda peak: peak.running),
        ("prefix cache in host memory, at most", "MB", lambda peak: peak.cache_bytes / _MB),
    )
    return tuple(Figure(what=what, rounds=_each(peaks, figure), unit=unit) for what, unit, figure in rows)


async def _measure(size: Size, port: int, number: int) -> _Peak:
    clients, peak = Clients(port), _Peak()
    watcher = asyncio.create_task(peak.watch(port))
    try:
        await clients.closed_loop(asks(size, number), size.requests)
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    clients.check()
    peak.note(await cache_stats(port))
    return peak


def asks(size: Size, number: int) -> list[Ask]:
    shared = random_tokens(size.shared_tokens, "memory", number)
    return [
        Ask(
            prompt=shared + random_tokens(size.own_tokens, "memory own", number, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.requests)
    ]


def _each(peaks: list[_Peak], figure: Callable[[_Peak], float]) -> Rounds:
    return Rounds(tuple(float(figure(peak)) for peak in peaks))
