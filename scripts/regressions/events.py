"""*events*: output tokens/s with and without a listener of `GET /v1/events`.

One server has endless clients of both priorities. Windows with and without a listener alternate, so that a
noisy machine affects both; each pair is compared by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import psutil
from bench.asking import Ask, Priority
from bench.clients import call
from bench.models import gguf
from bench.prompts import random_tokens
from bench.servers import Server, Variant, ours, running

_WARM_UP_S = 10.0


class Window(NamedTuple):
    tokens_per_s: float
    api_cores: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=gguf, default="smollm2")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--window-s", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=10)


def run(options: argparse.Namespace) -> None:
    with running(ours(Variant.WHOLE, options.model), []) as server:
        asyncio.run(_measured(server, options))


async def _measured(server: Server, options: argparse.Namespace) -> None:
    windows: dict[bool, list[Window]] = {False: [], True: []}
    counted: list[int] = []
    clients = server.clients()
    async with clients.endless(endless(), options.clients):
        await asyncio.sleep(_WARM_UP_S)
        for pair in range(options.pairs):
            for is_watched in (False, True) if pair % 2 else (True, False):
                listener = asyncio.create_task(_listen(server.port, counted)) if is_watched else None
                windows[is_watched].append(await _window(server, options.window_s))
                if listener is not None:
                    listener.cancel()
                    await asyncio.gather(listener, return_exceptions=True)
    _report(windows[False], windows[True], sum(counted) / (options.pairs * options.window_s))


def endless() -> Iterator[Ask]:
    draw = random.Random(0)
    for number in itertools.count():
        yield Ask(
            prompt=random_tokens(draw.randint(20, 80), "events", number),
            max_tokens=draw.randint(200, 600),
            seed=number,
            priority=Priority.BATCH if number % 4 else Priority.INTERACTIVE,
        )


async def _listen(port: int, counted: list[int]) -> None:
    async with (
        httpx.AsyncClient(timeout=None) as http,
        http.stream("GET", f"http://127.0.0.1:{port}/v1/events") as answer,
    ):
        async for piece in answer.aiter_raw():
            counted.append(len(piece))


async def _window(server: Server, seconds: float) -> Window:
    began_s, tokens, cpu_s = time.monotonic(), await _sampled(server.port), _api_cpu_s(server)
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - began_s
    cores = (_api_cpu_s(server) - cpu_s) / took_s
    return Window((await _sampled(server.port) - tokens) / took_s, cores)


async def _sampled(port: int) -> float:
    page = (await call(port, "GET", "/metrics")).decode()
    return float(
        next(line for line in page.splitlines() if line.startswith("ocs_sampled_tokens_total ")).split()[1]
    )


def _api_cpu_s(server: Server) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def _report(without: list[Window], watched: list[Window], bytes_per_s: float) -> None:
    changes = [100 * (b.tokens_per_s / a.tokens_per_s - 1) for a, b in zip(without, watched, strict=True)]
    medians = [statistics.median(one.tokens_per_s for one in some) for some in (without, watched)]
    cpu = [100 * statistics.mean(one.api_cores for one in some) for some in (without, watched)]
    print(f"without a listener: {medians[0]:.2f} tokens/s (median of windows)")
    print(f"with one:           {medians[1]:.2f} tokens/s")
    spread = f"from {min(changes):+.1f} to {max(changes):+.1f}"
    print(f"change by pair:     {statistics.median(changes):+.2f} % (median; {spread})")
    print(f"API process:        {cpu[0]:.2f} % of a core without, {cpu[1]:.2f} % with")
    print(f"the stream:         {bytes_per_s / 1000:.1f} kB/s")
