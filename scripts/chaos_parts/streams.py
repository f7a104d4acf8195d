"""Streams while the engine is killed repeatedly: complete, and equal to a quiet server's."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.clients import Clients
from bench.prompts import random_tokens
from bench.traffic import BenchRequest, Trace

from chaos_parts.server import RayServer, Server

_TIE = 0.05
"""Difference in log-probability below which rounding may change the order of tokens."""
_AGAIN = 0.2
"""Share of kills that follow within a second and often hit a loading engine."""
_BETWEEN = 16
"""Tokens before the next kill by progress; fast kills would all hit loading engines."""
_LOOK_S = 0.002


@dataclass
class StreamFigures:
    kills: int
    deaths: str
    own_deaths: int
    """Deaths that no kill explains, also by the OOM killer. A Ray replica that is killed before an API
    process knows it does not count."""
    requests: int
    lost: int
    doubled: int
    """Streams with more tokens than requested, or than the server has counted."""
    different: int
    ties: int
    """Answers that part where the two best tokens were as good as equal."""
    status_5xx: int
    memory_start_mib: float
    memory_end_mib: float
    longest_pause_s: float
    quiet_s: float
    wall_s: float

    @property
    def is_good(self) -> bool:
        wrong = (self.own_deaths, self.lost, self.doubled, self.different, self.status_5xx)
        return not any(wrong)


async def run_streams(
    model: Path,
    folder: Path,
    *,
    requests: int,
    kills: int,
    tokens: int,
    clients: int,
    seed: int,
    over_ray: bool = False,
    readers: bool = False,
) -> StreamFigures:
    """`over_ray`: kill one of two engine replicas at a time. `readers`: kill reader processes instead."""
    chance = random.Random(seed)
    options = ("--jobs-db", "none", "--max-crashes-per-minute", "1000")
    bench_requests = [
        BenchRequest(
            prompt=random_tokens(10 + 6 * (number % 7), "chaos", number),
            max_tokens=tokens,
            temperature=0.0,
            logprobs=2,
            seed=number,
        )
        for number in range(requests)
    ]
    log = folder / "streams.log"
    with RayServer(model, log, *options) if over_ray else Server([f"chaos={model}"], log, *options) as server:
        quiet, disturbed = server.clients(), server.clients()
        began = time.monotonic()
        await _stream(quiet, bench_requests, clients)
        quiet_s, start_mib = time.monotonic() - began, server.rss_mib()
        kill = server.kill_reader if readers and isinstance(server, Server) else server.kill_engine
        killer = asyncio.create_task(_kill(kill, kills, requests * tokens, chance, disturbed))
        began = time.monotonic()
        await _stream(disturbed, bench_requests, clients)
        killer.cancel()
        await asyncio.wait([killer])
        if not killer.cancelled():
            killer.result()
        wall_s, deaths = time.monotonic() - began, server.deaths()
        pairs = [(_of(request, quiet), _of(request, disturbed)) for request in bench_requests]
        after = [trace for _, trace in pairs]
        partings = [margin for both in pairs if (margin := parting(*both)) is not None]
        return StreamFigures(
            kills=server.kills,
            deaths=", ".join(f"{cause} {count}" for cause, count in deaths.most_common()) or "none",
            own_deaths=max(0, sum(deaths.values()) - server.kills),
            requests=requests,
            lost=sum(not _is_whole(one) for one in after),
            doubled=sum(len(one.scored) > tokens for one in after),
            different=sum(margin >= _TIE for margin in partings),
            ties=sum(margin < _TIE for margin in partings),
            status_5xx=sum("status 5" in (one.error or "") for both in pairs for one in both),
            memory_start_mib=start_mib,
            memory_end_mib=server.rss_mib(),
            longest_pause_s=max(b - a for one in after for a, b in pairwise(one.chunk_times)),
            quiet_s=quiet_s,
            wall_s=wall_s,
        )


async def _stream(clients: Clients, bench_requests: list[BenchRequest], at_once: int) -> None:
    """Run a closed loop whose clients continue after a failure."""
    gate = asyncio.Semaphore(at_once)

    async def send(request: BenchRequest) -> None:
        async with gate:
            await clients.send(request)

    await asyncio.gather(*map(send, bench_requests))


def _of(request: BenchRequest, clients: Clients) -> Trace:
    return next(trace for trace in clients.traces if trace.request is request)


async def _kill(
    kill: Callable[[], bool], kills: int, num_tokens: int, chance: random.Random, clients: Clients
) -> None:
    num_again = round(_AGAIN * kills)
    moments = sorted(chance.randrange(num_tokens * 3 // 4) for _ in range(kills - num_again))
    early = range((len(moments) + 1) // 2)  # the second one, a second later, must still find streams
    doubled = set(chance.sample(early, min(num_again, len(early))))
    for number, moment in enumerate(moments):
        least = max(moment, _num_tokens(clients) + _BETWEEN)
        while _num_tokens(clients) < least:  # noqa: ASYNC110 (clients do not say how far they are)
            await asyncio.sleep(_LOOK_S)
        await _kill_one(kill, chance.uniform(0, 0.05))
        if number in doubled:
            await _kill_one(kill, chance.uniform(0, 1))


async def _kill_one(kill: Callable[[], bool], delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    while not kill():  # noqa: ASYNC110 (what is waited for is another process)
        await asyncio.sleep(0.01)


def _num_tokens(clients: Clients) -> int:
    return sum(len(trace.scored) for trace in clients.traces)


def _is_whole(trace: Trace) -> bool:
    wanted = trace.request.max_tokens
    return trace.is_complete and trace.output_tokens == wanted and len(trace.scored) >= wanted


def parting(quiet: Trace, disturbed: Trace) -> float | None:
    """Return the quiet run's margin over the second best token where two answers part, or None."""
    for one, other in zip(quiet.scored, disturbed.scored, strict=False):
        if one.text != other.text:
            return max(one.top.values()) - min(one.top.values()) if len(one.top) > 1 else 0.0
    return None
