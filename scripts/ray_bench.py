#!/usr/bin/env python3
"""What Ray Serve and the choice of replicas cost: two engine replicas of one core against one engine of two.

    .venv/bin/python scripts/ray_bench.py [--model smollm2]

Throughput of whole answers, time to the first token of single streams, and CPU time of all processes but
engines, each of a plain server and of replicas on this machine. It wants the machine for itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from chaos_parts.ray_server import RayServer
from chaos_parts.server import Server

_STREAMS, _FIRST_TOKENS = 8, 24


@dataclass
class Figures:
    name: str
    tokens_per_s: float
    """Of whole answers, all at once."""
    first_token_ms: float
    """Median of single streams."""
    engine_ms: float
    """CPU time of engine processes for each token of streams."""
    other_ms: float
    """CPU time of all other processes for each of these."""


def main() -> None:
    arguments = _arguments()
    found = []
    with tempfile.TemporaryDirectory(prefix="ray-bench-") as folder:
        options = ("--jobs-db", "none")
        with Server(arguments.model, Path(folder) / "plain.log", *options) as plain:
            found.append(_figures("one engine, two cores", plain, plain.process.pid, arguments.clients))
        with RayServer(arguments.model, Path(folder) / "ray.log", *options) as replicas:
            found.append(
                _figures("two replicas, one core", replicas, replicas.process.pid, arguments.clients)
            )
    for one in found:
        print(
            f"{one.name:24} {one.tokens_per_s:7.1f} tokens/s   first token {one.first_token_ms:6.1f} ms   "
            f"CPU a token: engine {one.engine_ms:.2f} ms, others {one.other_ms:.3f} ms"
        )
    plain_figures, ray_figures = found
    more_ms = ray_figures.other_ms - plain_figures.other_ms
    print(f"throughput {ray_figures.tokens_per_s / plain_figures.tokens_per_s:.2f} of one engine's")
    print(f"first token {ray_figures.first_token_ms - plain_figures.first_token_ms:+.1f} ms")
    print(f"CPU a token {more_ms:+.3f} ms: {100 * more_ms / ray_figures.engine_ms:.1f} % of the engine's")


def _figures(name: str, server: Server | RayServer, pid: int, clients: int) -> Figures:
    asyncio.run(_load(server.url, clients, 16))
    began = time.monotonic()
    tokens = asyncio.run(_load(server.url, 2 * clients, 96, at_once=clients))
    rate = tokens / (time.monotonic() - began)
    first_ms = statistics.median(_first_token_ms(server.url, number) for number in range(_FIRST_TOKENS))
    with _cpu(pid) as spent:
        streamed = asyncio.run(_load(server.url, _STREAMS, 128, is_streaming=True))
    return Figures(name, rate, first_ms, 1000 * spent["engine"] / streamed, 1000 * spent["other"] / streamed)


async def _load(
    url: str, num: int, tokens: int, *, at_once: int | None = None, is_streaming: bool = False
) -> int:
    gate = asyncio.Semaphore(at_once or num)
    limits = httpx.Limits(max_connections=num)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        return sum(
            await asyncio.gather(*(_answer(client, gate, n, tokens, is_streaming) for n in range(num)))
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
def _cpu(pid: int) -> Iterator[dict[str, float]]:
    """CPU seconds that the family of the process has spent meanwhile: engines, and all others."""
    before = _times(pid)
    spent = {"engine": 0.0, "other": 0.0}
    yield spent
    for process, (is_engine, seconds) in _times(pid).items():
        spent["engine" if is_engine else "other"] += seconds - before.get(process, (False, 0.0))[1]


def _times(pid: int) -> dict[psutil.Process, tuple[bool, float]]:
    found = {}
    root = psutil.Process(pid)
    for one in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = one.cpu_times()
            is_engine = "openai_cpu_server.engine.process" in one.cmdline()
            found[one] = (is_engine, times.user + times.system)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray_bench.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2", help="default %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="answers at once (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
