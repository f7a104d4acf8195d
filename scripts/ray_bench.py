#!/usr/bin/env python3
"""What Ray Serve and the choice of replicas cost: two engine replicas of one core against plain servers.

    .venv/bin/python scripts/ray_bench.py [--model smollm2] [--only plain one pair ray first]

Throughput of whole answers, time to the first token of single streams, and CPU time by process: what runs all
the time, in each second without requests, and what each token of streams takes beside that.
plain: one server whose engine has two cores. one: the same with one core, which is what a first token of a
replica can be. pair: two such servers with half of the clients each, which is what two replicas can be at
best. ray: two replicas. first: first tokens only, asked of one and of ray in turns. It wants the machine for
itself.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from chaos_parts.ray_server import RayServer
from chaos_parts.server import Server

_STREAMS, _FIRST_TOKENS, _IDLE_S = 8, 24, 10.0
_ANSWERS = 8
"""For each client. With two, a quarter of the time was the end, when not all replicas have work."""
_OPTIONS = ("--jobs-db", "none")
_ENGINE, _SERVER, _OTHER = "engine", "API process", "rest of Ray"
_TITLES = {
    "openai_cpu_server.engine.process": _ENGINE,
    ":engine-": "engine replica",
    ":api": "API replica",
    "ServeController": "controller",
    "gcs_server": "GCS",
    "raylet/raylet": "raylet",
    "DashboardAgent": "node's agent",
    "log_monitor.py": "log monitor",
    "monitor.py": "autoscaler",
}
"""What is found in the command line of a process, and what it is called here."""


@dataclass
class Figures:
    tokens_per_s: float
    """Of whole answers, all at once."""
    first_token_ms: float
    """Median of single streams."""
    token_ms: Counter[str]
    """By process, CPU time that each token of streams takes beside what runs all the time."""
    idle_ms: Counter[str]
    """By process, CPU time in each second without requests."""

    @property
    def others_token_ms(self) -> float:
        """Of all that is not an engine."""
        return self.token_ms.total() - self.token_ms[_ENGINE]


def main() -> None:
    arguments = _arguments()
    found: dict[str, Figures] = {}
    rates: dict[str, list[float]] = defaultdict(list)
    for name in arguments.only * arguments.rounds:
        with tempfile.TemporaryDirectory(prefix="ray-bench-") as folder, ExitStack() as servers:
            if name == "first":
                _compare_first_tokens(servers, Path(folder), arguments.model)
                continue
            urls, pids = _SERVERS[name](servers, Path(folder), arguments.model)
            found[name] = _figures(urls, pids, arguments.clients, arguments.tokens)
        _tell(name, found[name])
        rates[name].append(found[name].tokens_per_s)
    for name, all_of_it in rates.items():
        found[name].tokens_per_s = statistics.median(all_of_it)
    _compare(found)


def _tell(name: str, one: Figures) -> None:
    print(f"{name:6} {one.tokens_per_s:7.1f} tokens/s   first token {one.first_token_ms:6.1f} ms")
    print(f"       CPU ms a token:  {_told(one.token_ms, 3)}")
    print(f"       CPU ms a second, without requests:  {_told(one.idle_ms, 1)}", flush=True)


def _told(ms: Counter[str], digits: int) -> str:
    return "  ".join(f"{name} {spent:.{digits}f}" for name, spent in ms.most_common() if round(spent, digits))


def _compare(found: dict[str, Figures]) -> None:
    if (ray := found.get("ray")) is None:
        return
    for name, plain in found.items():
        if name != "ray":
            print(f"ray against {name}: throughput {ray.tokens_per_s / plain.tokens_per_s:.2f}", end="")
            print(f", first token {ray.first_token_ms - plain.first_token_ms:+.1f} ms", end="")
            more_ms = ray.others_token_ms - plain.others_token_ms
            share = more_ms / ray.token_ms[_ENGINE]
            print(f", CPU a token {more_ms:+.3f} ms ({100 * share:+.1f} % of the engine's)", end="")
            print(f", a second {ray.idle_ms.total() - plain.idle_ms.total():+.1f} ms")


def _compare_first_tokens(servers: ExitStack, folder: Path, model: Path) -> None:
    """In turns: what else the machine does meanwhile hits both."""
    urls = {name: _SERVERS[name](servers, folder, model)[0][0] for name in ("one", "ray")}
    told: dict[str, list[float]] = {name: [] for name in urls}
    for url in urls.values():
        asyncio.run(_load([url], 2, 16))
    clients = {name: servers.enter_context(_client(url)) for name, url in urls.items()}
    for number in range(2 * _FIRST_TOKENS):
        for name, client in clients.items():
            told[name].append(_first_token_ms(client, number))
    medians = {name: statistics.median(times) for name, times in told.items()}
    more = statistics.median(ray - one for one, ray in zip(told["one"], told["ray"], strict=True))
    print("first  ", "   ".join(f"{name} {ms:.1f} ms" for name, ms in medians.items()), end="")
    print(f"   median of the differences {more:+.1f} ms", flush=True)


# -- servers ---------------------------------------------------------------------------------------------

Started = tuple[list[str], list[int]]
"""Their addresses and processes."""


def _plain(servers: ExitStack, folder: Path, model: Path) -> Started:
    server = servers.enter_context(Server(model, folder / "plain.log", *_OPTIONS))
    return [server.url], [server.process.pid]


def _one(servers: ExitStack, folder: Path, model: Path) -> Started:
    return _on_cores(servers, folder, model, sorted(os.sched_getaffinity(0))[:1])


def _pair(servers: ExitStack, folder: Path, model: Path) -> Started:
    return _on_cores(servers, folder, model, sorted(os.sched_getaffinity(0))[:2])


def _on_cores(servers: ExitStack, folder: Path, model: Path, cores: Sequence[int]) -> Started:
    """A server for each core, whose engine stays there, as a replica's does."""
    urls, pids = [], []
    for core in cores:
        options = (*_OPTIONS, "--threads", "1")
        server = servers.enter_context(Server(model, folder / f"core{core}.log", *options))
        engine = server.engine()
        assert engine is not None
        for thread in engine.threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, {core})
        urls.append(server.url)
        pids.append(server.process.pid)
    return urls, pids


def _ray(servers: ExitStack, folder: Path, model: Path) -> Started:
    server = servers.enter_context(RayServer(model, folder / "ray.log", *_OPTIONS))
    return [server.url], [server.process.pid]


_SERVERS: dict[str, Callable[[ExitStack, Path, Path], Started]] = {
    "plain": _plain,
    "one": _one,
    "pair": _pair,
    "ray": _ray,
}


# -- measuring -------------------------------------------------------------------------------------------


def _figures(urls: list[str], pids: list[int], clients: int, tokens: int) -> Figures:
    asyncio.run(_load(urls, clients, 16))
    began_s = time.monotonic()
    produced = asyncio.run(_load(urls, _ANSWERS * clients, tokens, at_once=clients))
    rate = produced / (time.monotonic() - began_s)
    with _client(urls[0]) as client:
        first_ms = statistics.median(_first_token_ms(client, number) for number in range(_FIRST_TOKENS))
    began_s = time.monotonic()
    with _cpu(pids) as busy:
        streamed = asyncio.run(_load(urls, _STREAMS, 2 * tokens, is_streaming=True))
    busy_s = time.monotonic() - began_s
    with _cpu(pids) as idle:
        time.sleep(_IDLE_S)
    beside = {name: busy[name] - busy_s * idle[name] / _IDLE_S for name in busy}
    return Figures(rate, first_ms, _per(beside, streamed), _per(idle, _IDLE_S))


def _per(spent_s: Mapping[str, float], num: float) -> Counter[str]:
    """In milliseconds."""
    return Counter({name: 1000 * seconds / num for name, seconds in spent_s.items()})


async def _load(
    urls: list[str], num: int, tokens: int, *, at_once: int | None = None, is_streaming: bool = False
) -> int:
    gate = asyncio.Semaphore(at_once or num)
    limits = httpx.Limits(max_connections=num)
    async with contextlib.AsyncExitStack() as clients:
        asking = [
            await clients.enter_async_context(httpx.AsyncClient(base_url=url, timeout=300, limits=limits))
            for url in urls
        ]
        turns = itertools.cycle(asking)
        return sum(
            await asyncio.gather(*(_answer(next(turns), gate, n, tokens, is_streaming) for n in range(num)))
        )


async def _answer(
    client: httpx.AsyncClient, gate: asyncio.Semaphore, number: int, tokens: int, is_streaming: bool
) -> int:
    body = _body(f"Story {number}, told once upon a time:", tokens)
    async with gate:
        if not is_streaming:
            answer = await client.post("/v1/completions", json=body)
            return int(answer.raise_for_status().json()["usage"]["completion_tokens"])
        async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            async for _ in response.aiter_lines():
                pass
        return tokens


def _client(url: str) -> httpx.Client:
    """One for all: a new one reads certificates for 50 ms."""
    return httpx.Client(base_url=url, timeout=60)


def _first_token_ms(client: httpx.Client, number: int) -> float:
    """With a pause before it: what is measured is one request, and not how they get into each other's way."""
    time.sleep(0.1)
    began_s = time.monotonic()
    body = _body(f"{number} is", 2) | {"stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                return 1000 * (time.monotonic() - began_s)
    raise RuntimeError("no token came")


def _body(prompt: str, tokens: int) -> dict[str, object]:
    return {
        "model": "chaos",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


@contextmanager
def _cpu(pids: list[int]) -> Iterator[dict[str, float]]:
    """CPU seconds that the families of the processes have spent meanwhile, by what they are called here."""
    before = _times(pids)
    spent: dict[str, float] = defaultdict(float)
    yield spent
    for process, (name, seconds) in _times(pids).items():
        spent[name] += seconds - before.get(process, (name, 0.0))[1]


def _times(pids: list[int]) -> dict[psutil.Process, tuple[str, float]]:
    found = {}
    for root in map(psutil.Process, pids):
        family = [root, *root.children(recursive=True)]
        rest = _SERVER if len(family) < 4 else _OTHER  # Ray has many processes
        for one in family:
            with suppress(psutil.Error):
                times, line = one.cpu_times(), " ".join(one.cmdline())
                name = next((name for title, name in _TITLES.items() if title in line), rest)
                found[one] = (name, times.user + times.system)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_bench.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("smollm2"), help="default %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="answers at once (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=1, help="of all in turn; of tokens/s the medians are compared"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*_SERVERS, "first"], default=list(_SERVERS), help="default: %(default)s"
    )
    arguments = parser.parse_args()
    if arguments.model.exists():
        arguments.model = arguments.model.resolve()  # replicas have another working directory
    return arguments


if __name__ == "__main__":
    main()
