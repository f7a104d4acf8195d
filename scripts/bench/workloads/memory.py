"""*memory*: memory of servers when ready and at work, and their idle CPU use; for ours also the KV cells
of requests with a common prefix, against a full context for each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.clients import CacheStats, Clients, LoadFailed, Pool, cache_stats
from bench.prompts import random_tokens
from bench.results import OURS, Contest, Direction, Figure, Goal, Line, Rounds, WorkloadResult
from bench.servers import Contestant, Room, Server, TreeUse, Variant, cpu_seconds, running

_POOL_TOKENS = 16384
_POLL_S = 0.02
_TRIES = 50
"""A tiny model sometimes finishes all requests between two looks, but hardly this often."""
_IDLE_CORES = 0.02
"""A process that wakes a few times a second stays below; a spinning thread takes a whole core."""
_CONTEXT = 4096
_SLOT_TOKENS = 2000
"""Tokens of a slot, for servers with 16 slots: in all as many cells as eight full contexts."""
_MB = 1e6


@dataclass(frozen=True)
class Size:
    requests: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int
    idle_s: float

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=_SLOT_TOKENS)


FULL = Size(requests=8, shared_tokens=1000, own_tokens=40, output_tokens=60, idle_s=5)
QUICK = Size(requests=8, shared_tokens=1000, own_tokens=20, output_tokens=20, idle_s=1)


class Peak:
    """Largest figures of our server. `pool` is from the moment when most cells were held."""

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


@dataclass(frozen=True)
class MemoryRun:
    idle_cores: float
    use: TreeUse
    peak: Peak | None = None


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> MemoryRun:
        if number == 0 and not who.is_peer:
            with running(who.spec(bench.model, size.room), []):
                pass  # its calibration is no part of "ready after"
        with bench.start(who, size.room) as server:
            idle_cores = _idle_cores(server, size.idle_s)
            peak = asyncio.run(_load(size, server, number, is_ours=who.key == OURS))
        _, use = bench.uses[-1]
        return MemoryRun(idle_cores, use, peak)

    contest = bench.contest(bench.contestants(Variant.WHOLE), measure)
    return WorkloadResult(
        name="memory",
        sizes=f"{size.requests} requests, {size.shared_tokens} shared + {size.own_tokens} own "
        f"+ {size.output_tokens} output tokens; before, {size.idle_s:g} s with nothing to do",
        goals=contest.of_ours("goals", lambda runs: _goals(size, runs)),
        lines=_lines(contest),
        figures=contest.of_ours("figures", lambda runs: _figures(size, _peaks(runs))),
        failures=contest.failures,
        notes=("resident memory counts the pages of a mapped model file, which the system can take back",),
    )


def _idle_cores(server: Server, seconds: float) -> float:
    start, before_s = time.perf_counter(), cpu_seconds(server.pid)
    time.sleep(seconds)
    return (cpu_seconds(server.pid) - before_s) / (time.perf_counter() - start)


def _lines(contest: Contest[MemoryRun]) -> tuple[Line, ...]:
    figures: tuple[tuple[str, str, Callable[[MemoryRun], float]], ...] = (
        ("ready after", "s", lambda run: run.use.ready_s),
        ("resident memory when ready", "MB", lambda run: run.use.ready_rss_bytes / _MB),
        ("resident memory at most", "MB", lambda run: run.use.peak_rss_bytes / _MB),
        ("cores used while idle", "", lambda run: run.idle_cores),
    )
    return tuple(contest.line(what, unit, Direction.AT_MOST, figure) for what, unit, figure in figures)


def _saved_percent(size: Size, peak: Peak) -> float:
    return 100 * (1 - peak.held.used.bytes / _full_bytes(size, peak))


def _full_bytes(size: Size, peak: Peak) -> float:
    return size.requests * _CONTEXT * peak.held.total.bytes / peak.held.total.tokens


def _peaks(runs: list[MemoryRun]) -> list[Peak]:
    return [run.peak for run in runs if run.peak is not None]


def _goals(size: Size, runs: list[MemoryRun]) -> tuple[Goal, Goal]:
    return (
        Goal.at_least(
            f"bytes of KV cells saved at peak, against a context of {_CONTEXT} for each request",
            Rounds.of(_peaks(runs), lambda peak: _saved_percent(size, peak)),
            72,
            "%",
        ),
        Goal.at_most("cores used while idle", Rounds.of(runs, lambda run: run.idle_cores), _IDLE_CORES),
    )


def _figures(size: Size, peaks: list[Peak]) -> tuple[Figure, ...]:
    per_request = size.own_tokens + size.output_tokens
    unshared = size.requests * (size.shared_tokens + per_request)
    rows: tuple[tuple[str, str, Callable[[Peak], float]], ...] = (
        ("pool, held at peak", "MB", lambda peak: peak.held.used.bytes / _MB),
        ("full contexts", "MB", lambda peak: _full_bytes(size, peak) / _MB),
        ("pool, cells held at peak", "", lambda peak: peak.held.used.tokens),
        ("of these, shared", "", lambda peak: peak.held.shared.tokens),
        ("cells without sharing", "", lambda _: unshared),
        ("cells with perfect sharing", "", lambda _: size.shared_tokens + size.requests * per_request),
        ("requests that ran at once", "", lambda peak: peak.running),
        ("prefix cache in host memory, at most", "MB", lambda peak: peak.cache_bytes / _MB),
    )
    return tuple(Figure(what=what, rounds=Rounds.of(peaks, figure), unit=unit) for what, unit, figure in rows)


async def _load(size: Size, server: Server, number: int, *, is_ours: bool) -> Peak | None:
    clients = server.clients()
    if is_ours:
        return await _watched_load(size, server, clients, number)
    await _ask_at_once(size, clients, number)
    return None


async def _watched_load(size: Size, server: Server, clients: Clients, number: int) -> Peak:
    peak = Peak()
    watcher = asyncio.create_task(peak.watch(server.port))
    try:
        for again in range(_TRIES):
            await _ask_at_once(size, clients, number, again)
            if peak.is_seen or watcher.done():
                break
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
    peak.note(await cache_stats(server.port))
    return peak


async def _ask_at_once(size: Size, clients: Clients, number: int, again: int = 0) -> None:
    await clients.closed_loop(asks(size, number, again), size.requests)
    clients.check()


def asks(size: Size, number: int, again: int = 0) -> list[Ask]:
    shared = random_tokens(size.shared_tokens, "memory", number, again)
    return [
        Ask(
            prompt=shared + random_tokens(size.own_tokens, "memory own", number, again, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.requests)
    ]
