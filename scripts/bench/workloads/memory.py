"""*memory*: servers' memory when ready and at work, and idle CPU use; for ours also the KV cells of requests
with a common prefix, against a full context for each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.bench import Bench
from bench.clients import CacheStats, LoadFailed, Pool, cache_stats
from bench.prompts import random_tokens
from bench.results import OURS, Direction, Figure, Goal, Rounds, WorkloadResult
from bench.servers import Contestant, Room, Server, TreeUse, Variant, cpu_by_process, running
from bench.traffic import BenchRequest

_ROOM = Room(pool_tokens=16384, request_tokens=2000)
"""Room for eight full contexts, on servers with 16 slots."""
_POLL_S = 0.02
_TRIES = 50
"""A tiny model sometimes finishes all requests between two looks."""
_IDLE_CORES = 0.02
"""A process that wakes a few times a second uses less; a spinning thread a whole core."""
_CONTEXT = 4096
_MB = 1e6


@dataclass(frozen=True)
class Size:
    own_tokens: int
    output_tokens: int
    idle_s: float
    requests: int = 8
    shared_tokens: int = 1000

    def bench_requests(self, *seed: object) -> list[BenchRequest]:
        shared = random_tokens(self.shared_tokens, "memory", *seed)
        return [
            BenchRequest(
                prompt=shared + random_tokens(self.own_tokens, "memory own", *seed, i),
                max_tokens=self.output_tokens,
                seed=i,
            )
            for i in range(self.requests)
        ]


FULL, QUICK = Size(40, 60, idle_s=5), Size(20, 20, idle_s=1)


class Peak:
    """Largest figures of ours; `pool` when most cells were held."""

    def __init__(self) -> None:
        self.pool: Pool | None = None
        self.cache_bytes = 0
        self.running = 0

    async def watch(self, port: int) -> None:
        """Watch until cancelled. Raises HttpFailed."""
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
    def is_seen(self) -> bool:
        return self.pool is not None and self.pool.used.tokens > 0

    @property
    def held(self) -> Pool:
        """Pool when most of its cells were held. Raises LoadFailed if that was never seen."""
        if self.pool is None or not self.is_seen:
            raise LoadFailed("the requests were over before their cells could be counted")
        return self.pool

    def full_bytes(self, requests: int) -> float:
        return requests * _CONTEXT * self.held.total.bytes / self.held.total.tokens


@dataclass(frozen=True)
class MemoryRun:
    idle_cores: float
    use: TreeUse
    peak: Peak


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> MemoryRun:
        if number == 0 and not who.is_peer:
            with running(who.spec(bench.model, _ROOM), []):
                pass  # its calibration is not part of "ready after"
        with bench.start(who, _ROOM) as server:
            start, before_s = time.perf_counter(), sum(cpu_by_process(server.pid).values())
            time.sleep(size.idle_s)
            used_s = sum(cpu_by_process(server.pid).values()) - before_s
            idle_cores = used_s / (time.perf_counter() - start)
            peak = asyncio.run(_load(size, server, number, is_ours=who.key == OURS))
        _, use = bench.uses[-1]
        return MemoryRun(idle_cores, use, peak)

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    lines: tuple[tuple[str, str, Callable[[MemoryRun], float]], ...] = (
        ("ready after", "s", lambda run: run.use.ready_s),
        ("resident memory when ready", "MB", lambda run: run.use.ready_rss_bytes / _MB),
        ("resident memory at most", "MB", lambda run: run.use.peak_rss_bytes / _MB),
        ("cores used while idle", "", lambda run: run.idle_cores),
    )
    return WorkloadResult(
        name="memory",
        sizes=f"{size.requests} requests, {size.shared_tokens} shared + {size.own_tokens} own "
        f"+ {size.output_tokens} output tokens; before, {size.idle_s:g} s with nothing to do",
        goals=contest.of_ours("goals", lambda runs: _goals(size, runs)),
        lines=tuple(contest.line(what, unit, Direction.AT_MOST, get) for what, unit, get in lines),
        figures=contest.of_ours("figures", lambda runs: _figures(size, runs)),
        failures=contest.failures,
        notes=("resident memory counts the pages of a mapped model file, which the system can take back",),
    )


def _goals(size: Size, runs: list[MemoryRun]) -> tuple[Goal, Goal]:
    saved = Rounds.of(
        runs, lambda run: 100 * (1 - run.peak.held.used.bytes / run.peak.full_bytes(size.requests))
    )
    what = f"bytes of KV cells saved at peak, against a context of {_CONTEXT} for each request"
    idle = Rounds.of(runs, lambda run: run.idle_cores)
    return Goal.at_least(what, saved, 72, "%"), Goal.at_most("cores used while idle", idle, _IDLE_CORES)


def _figures(size: Size, runs: list[MemoryRun]) -> tuple[Figure, ...]:
    per_request = size.own_tokens + size.output_tokens
    unshared = size.requests * (size.shared_tokens + per_request)
    rows: tuple[tuple[str, str, Callable[[Peak], float]], ...] = (
        ("pool, held at peak", "MB", lambda peak: peak.held.used.bytes / _MB),
        ("full contexts", "MB", lambda peak: peak.full_bytes(size.requests) / _MB),
        ("pool, cells held at peak", "", lambda peak: peak.held.used.tokens),
        ("of these, shared", "", lambda peak: peak.held.shared.tokens),
        ("cells without sharing", "", lambda _: unshared),
        ("cells with perfect sharing", "", lambda _: size.shared_tokens + size.requests * per_request),
        ("requests that ran at once", "", lambda peak: peak.running),
        ("prefix cache in host memory, at most", "MB", lambda peak: peak.cache_bytes / _MB),
    )
    peaks = [run.peak for run in runs]
    return tuple(Figure(what=what, rounds=Rounds.of(peaks, figure), unit=unit) for what, unit, figure in rows)


async def _load(size: Size, server: Server, number: int, *, is_ours: bool) -> Peak:
    clients, peak = server.clients(), Peak()
    watcher = asyncio.create_task(peak.watch(server.port)) if is_ours else None
    try:
        for again in range(_TRIES):
            await clients.closed_loop(size.bench_requests(number, again), size.requests)
            clients.check()
            if watcher is None or peak.is_seen or watcher.done():
                break
    finally:
        if watcher is not None:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
    if is_ours:
        peak.note(await cache_stats(server.port))
    return peak
