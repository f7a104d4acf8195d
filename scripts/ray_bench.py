#!/usr/bin/env python3
"""What Ray Serve and the choice of replicas cost: two engine replicas of one core against plain servers.

    .venv/bin/python scripts/ray_bench.py [--model smollm2] [--only plain one pair ray]

Throughput of whole answers, time to the first token of single streams, and CPU time a token by process.
plain: one server whose engine has two cores. one: the same with one core, which is what a first token of a
replica can be. pair: two such servers with half of the clients each, which is what two replicas can be at
best. ray: two replicas. It wants the machine for itself.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from chaos_parts.ray_server import RayServer
from chaos_parts.server import Server

_STREAMS, _FIRST_TOKENS, _IDLE_S = 8, 24, 5.0
_OPTIONS = ("--jobs-db", "none")
_PARTS = ("engine", "replica", "api", "ray")
_TITLES = {"openai_cpu_server.engine.process": "engine", ":engine-": "replica", ":api": "api"}
"""What is found in the command line of a process, and the part that it belongs to."""


@dataclass
class Figures:
    tokens_per_s: float
    """Of whole answers, all at once."""
    first_token_ms: float
    """Median of single streams."""
    cpu_ms: Counter[str]
    """By part, CPU time for each token of streams."""
    idle_ms: Counter[str]
    """By part, CPU time in each second without requests."""

    @property
    def other_ms(self) -> float:
        """Of all that is not an engine."""
        return self.cpu_ms.total() - self.cpu_ms["engine"]


def main() -> None:
    arguments = _arguments()
    found: dict[str, Figures] = {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory(prefix="ray-bench-") as folder, ExitStack() as servers:
            urls, pids = _SERVERS[name](servers, Path(folder), arguments.model)
            found[name] = _figures(urls, pids, arguments.clients, arguments.tokens)
        _tell(name, found[name])
    _compare(found)


def _tell(name: str, one: Figures) -> None:
    parts = "  ".join(f"{part} {one.cpu_ms[part]:.3f}" for part in _PARTS if one.cpu_ms[part])
    idle = "  ".join(f"{part} {one.idle_ms[part]:.1f}" for part in _PARTS if one.idle_ms[part])
    print(
        f"{name:6} {one.tokens_per_s:7.1f} tokens/s   first token {one.first_token_ms:6.1f} ms   "
        f"CPU ms a token: {parts}   ms a second idle: {idle}",
        flush=True,
    )


def _compare(found: dict[str, Figures]) -> None:
    ray = found.get("ray")
    for name in ("plain", "pair"):
        if ray is not None and name in found:
            print(f"throughput {ray.tokens_per_s / found[name].tokens_per_s:.2f} of {name}'s")
    for name in ("plain", "one"):
        if ray is not None and name in found:
            print(f"first token {ray.first_token_ms - found[name].first_token_ms:+.1f} ms against {name}")
    for name in ("plain", "pair"):
        if ray is not None and name in found:
            more_ms = ray.other_ms - found[name].other_ms
            share = more_ms / ray.cpu_ms["engine"]
            print(f"CPU a token {more_ms:+.3f} ms against {name}: {100 * share:.1f} % of the engine's")


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
    began = time.monotonic()
    produced = asyncio.run(_load(urls, 2 * clients, tokens, at_once=clients))
    rate = produced / (time.monotonic() - began)
    first_ms = statistics.median(_first_token_ms(urls[0], number) for number in range(_FIRST_TOKENS))
    with _cpu(pids) as spent:
        streamed = asyncio.run(_load(urls, _STREAMS, tokens, is_streaming=True))
    with _cpu(pids) as idle:
        time.sleep(_IDLE_S)
    return Figures(rate, first_ms, _per(spent, streamed), _per(idle, _IDLE_S))


def _per(spent_s: Counter[str], num: float) -> Counter[str]:
    """In milliseconds."""
    return Counter({part: 1000 * seconds / num for part, seconds in spent_s.items()})


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


def _first_token_ms(url: str, number: int) -> float:
    """With a pause before it: what is measured is one request, and not how they get into each other's way."""
    time.sleep(0.1)
    began = time.monotonic()
    with httpx.stream(
        "POST", url + "/v1/completions", json=_body(f"{number} is", 2) | {"stream": True}, timeout=60
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                return 1000 * (time.monotonic() - began)
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
def _cpu(pids: list[int]) -> Iterator[Counter[str]]:
    """CPU seconds that the families of the processes have spent meanwhile, by part."""
    before = _times(pids)
    spent: Counter[str] = Counter()
    yield spent
    for process, (part, seconds) in _times(pids).items():
        spent[part] += seconds - before.get(process, ("", 0.0))[1]  # type: ignore[assignment]  # floats


def _times(pids: list[int]) -> dict[psutil.Process, tuple[str, float]]:
    found = {}
    for root in map(psutil.Process, pids):
        family = [root, *root.children(recursive=True)]
        is_server = len(family) < 4  # Ray has many processes
        for one in family:
            with suppress(psutil.Error):
                times = one.cpu_times()
                named = " ".join(one.cmdline())
                part = next((part for title, part in _TITLES.items() if title in named), None)
                found[one] = (part or ("api" if is_server else "ray"), times.user + times.system)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_bench.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="default %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="answers at once (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default %(default)s)")
    parser.add_argument(
        "--only", nargs="+", choices=list(_SERVERS), default=list(_SERVERS), help="default: all"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
