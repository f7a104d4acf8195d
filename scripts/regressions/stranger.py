"""*stranger*: output tokens/s beside one busy process of another session, as a share of those alone; and
the time until all threads compute again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.http_client import call
from bench.load import Clients
from bench.results import Figure, Goal, WorkloadResult
from bench.servers import Server
from bench.stats import Rounds, ratios

_POOL_TOKENS = 16384
_LOOK_S = 0.05
_GIVE_UP_S = 10.0
_SHARES = {1: 0.75, 4: 0.6, 16: 0.5, 32: 0.5}


@dataclass(frozen=True)
class Size:
    clients: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    ramp_s: float
    """Before each window, so that requests that have just begun are not measured."""
    window_s: float


FULL = Size(tuple(_SHARES), prompt_tokens=165, output_tokens=48, ramp_s=2.0, window_s=20.0)
QUICK = Size((1, 4), prompt_tokens=40, output_tokens=48, ramp_s=0.5, window_s=3.0)


@dataclass(frozen=True)
class Run:
    alone_per_s: float
    beside_per_s: float
    threads_beside: int
    back_s: float
    """Time from the stranger's end until all threads have computed a step."""


def workload(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    runs: dict[int, list[Run]] = {clients: [] for clients in size.clients}
    for number in range(bench.rounds):
        with bench.server("--ctx-size", str(_POOL_TOKENS)) as server:
            for clients in size.clients:
                bench.say(f"round {number + 1} of {bench.rounds}: {clients} clients alone, then beside")
                runs[clients].append(asyncio.run(_run(bench, size, server, clients, number)))
    return WorkloadResult(
        name="stranger",
        sizes=f"requests of {size.prompt_tokens} + {size.output_tokens} tokens that share nothing; windows "
        f"of {size.window_s:g} s; one process that computes without pause, in a session of its own",
        goals=tuple(_goals(runs)),
        figures=tuple(_figures(runs)),
    )


def _goals(runs: dict[int, list[Run]]) -> Iterator[Goal]:
    for clients, of_them in runs.items():
        alone, beside = _rounds(of_them, "alone_per_s"), _rounds(of_them, "beside_per_s")
        share = ratios(beside, alone)
        yield Goal.at_least(f"share of the speed alone, {clients} clients", share, _SHARES[clients])
    back = Rounds(tuple(run.back_s for of_them in runs.values() for run in of_them))
    yield Goal.at_most("all threads are back", Rounds((max(back.values),)), 1.0, "s")


def _figures(runs: dict[int, list[Run]]) -> Iterator[Figure]:
    for clients, of_them in runs.items():
        for what, name, unit in (
            ("alone", "alone_per_s", "tok/s"),
            ("beside", "beside_per_s", "tok/s"),
            ("threads beside", "threads_beside", ""),
            ("back after", "back_s", "s"),
        ):
            yield Figure(what=f"{clients} clients: {what}", rounds=_rounds(of_them, name), unit=unit)


def _rounds(runs: list[Run], name: str) -> Rounds:
    return Rounds.of(runs, lambda run: getattr(run, name))


async def _run(bench: Bench, size: Size, server: Server, num_clients: int, number: int) -> Run:
    clients = server.clients()
    load = asyncio.create_task(clients.closed_loop(_asks(bench, size, num_clients, number), num_clients))
    try:
        alone_per_s = await _window(size, clients)
        with _stranger():
            beside_per_s = await _window(size, clients)
            threads_beside, _ = await _threads(server)
        back_s = await _back_s(server)
    finally:
        load.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await load
    clients.check()
    return Run(alone_per_s, beside_per_s, threads_beside, back_s)


def _asks(bench: Bench, size: Size, clients: int, number: int) -> Iterator[Ask]:
    for i in itertools.count():
        prompt = bench.prompts.question(size.prompt_tokens, "stranger", clients, number, i)
        yield Ask(prompt=prompt, max_tokens=size.output_tokens, seed=i)


async def _window(size: Size, clients: Clients) -> float:
    await asyncio.sleep(size.ramp_s)
    begin_s = time.perf_counter()
    await asyncio.sleep(size.window_s)
    end_s = time.perf_counter()
    return sum(trace.output_within(begin_s, end_s) for trace in clients.traces) / (end_s - begin_s)


@contextlib.contextmanager
def _stranger() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as process:
        try:
            yield
        finally:
            process.kill()


async def _back_s(server: Server) -> float:
    gone_s = time.perf_counter()
    while time.perf_counter() - gone_s < _GIVE_UP_S:
        now, most = await _threads(server)
        if now == most:
            break
        await asyncio.sleep(_LOOK_S)
    return time.perf_counter() - gone_s


async def _threads(server: Server) -> tuple[int, int]:
    text = (await call(server.port, "GET", "/metrics", b"")).decode()
    found = [re.search(rf"^ocs_engine_threads{name}{{.*}} (\S+)$", text, re.M) for name in ("_computing", "")]
    now, most = (int(float(one[1])) if one else 0 for one in found)
    return now, most
