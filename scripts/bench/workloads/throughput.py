"""*throughput*: sequential against batched, over the number of clients: short questions about one long text.
Every slot knows it before the clock starts, for steady operation (*prefix* begins cold)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from bench.bench import Bench
from bench.clients import Clients
from bench.prompts import random_tokens
from bench.results import OURS, Contest, Direction, Goal, Line, WorkloadResult, ratios
from bench.servers import SLOTS, Contestant, Room, Server, Variant
from bench.traffic import BenchRequest
from bench.workloads.batches import clients_in_words

_POOL_TOKENS = 16384
_COMPARED_AT = 16
_POLL_S = 0.05
_PAUSE_S = 2.0
"""llama-server looks once a second for disconnected clients."""
_ENOUGH = 4


@dataclass(frozen=True)
class Size:
    clients: tuple[int, ...]
    shared_tokens: int
    own_tokens: int
    output_tokens: int
    point_s: float
    least_requests: int

    @property
    def room(self) -> Room:
        longest = self.shared_tokens + self.own_tokens + self.output_tokens
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=longest)


FULL = Size((1, 2, 4, 8, 16, 32), 1024, 16, 16, point_s=20, least_requests=8)
QUICK = Size((1, 4, 16), 256, 8, 8, point_s=2, least_requests=4)

Speeds = dict[int, float]


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> Speeds:
        with bench.start(who, size.room) as server:
            return asyncio.run(_measure(server, size, number, who.at_once))

    contestants = bench.contestants(Variant.WHOLE, Variant.SEQUENTIAL, Variant.STATIC)
    contest = bench.contest(contestants, measure)
    lines = {
        clients: contest.line(
            f"requests, {clients_in_words(clients)}",
            "1/s",
            Direction.AT_LEAST,
            lambda speeds, clients=clients: speeds[clients],
        )
        for clients in size.clients
    }
    return WorkloadResult(
        name="throughput",
        sizes=f"{', '.join(map(str, size.clients))} clients, "
        f"{size.shared_tokens} shared + {size.own_tokens} own + {size.output_tokens} output tokens; the "
        f"shared ones are computed before; all clients ask until two requests a client, at least "
        f"{size.least_requests} in all, are answered: answers over the time until the last one; "
        f"a server that is not done after {size.point_s:g} s is let off with one a client, "
        f"one that serves one at a time with {_ENOUGH}",
        goals=(_goal(contest, lines),),
        lines=tuple(lines.values()),
        failures=contest.failures,
    )


async def _measure(server: Server, size: Size, number: int, at_once: int | None) -> Speeds:
    speeds: Speeds = {}
    for num_clients in size.clients:
        side_by_side = min(num_clients, at_once or num_clients)
        # One token for each slot, so that all have the shared text and no cut-off request still runs. They
        # come at once, so that no slot gets two of them.
        num_slots, clients = min(side_by_side, SLOTS), server.clients()
        probes = itertools.islice(requests(size, number, 0), num_slots)
        await clients.closed_loop(
            [msgspec.structs.replace(request, max_tokens=1) for request in probes], num_slots
        )
        clients.check()
        enough = max(_ENOUGH, side_by_side)
        speeds[num_clients] = await _speed(server, size, number, num_clients, enough)
    return speeds


async def _speed(server: Server, size: Size, number: int, num_clients: int, enough: int) -> float:
    """Return requests/s while all clients are busy. Fewer answers than requests would lower it."""
    clients = server.clients()
    start = time.perf_counter()
    async with clients.endless(requests(size, number, num_clients), num_clients):
        wanted, is_late = max(size.least_requests, 2 * num_clients), False
        while len(_ends(clients)) < (enough if is_late else wanted):
            clients.check()
            await asyncio.sleep(_POLL_S)
            is_late = time.perf_counter() > start + size.point_s
    await asyncio.sleep(_PAUSE_S)
    clients.check()
    ends = _ends(clients)
    return len(ends) / (max(ends) - start)


def _ends(clients: Clients) -> list[float]:
    return [trace.end for trace in clients.traces if trace.end is not None]


def requests(size: Size, number: int, num_clients: int) -> Iterator[BenchRequest]:
    """Yield endless requests, or for 0 clients those that make the shared text known."""
    shared = random_tokens(size.shared_tokens, "throughput", number)
    for i in itertools.count():
        yield BenchRequest(
            prompt=shared + random_tokens(size.own_tokens, "question", number, num_clients, i),
            max_tokens=size.output_tokens,
            seed=i,
        )


def _goal(contest: Contest[Speeds], lines: dict[int, Line]) -> Goal:
    """Compare with the best of the server that serves one at a time."""
    one, other = contest.label(OURS) or "", contest.label(Variant.SEQUENTIAL.key) or ""
    others = [line.servers[other] for line in lines.values() if other in line.servers]
    measured = None
    if others and one in lines[_COMPARED_AT].servers:
        best = max(others, key=lambda rounds: rounds.median)
        measured = ratios(lines[_COMPARED_AT].servers[one], best)
    what = f"requests/s with {_COMPARED_AT} clients, against '{Variant.SEQUENTIAL.label}'"
    return Goal.at_least(what, measured, 15.6, "x")
