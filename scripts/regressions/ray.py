"""*ray*: cost of Ray Serve and of the choice of replicas: two replicas against a plain server.

Throughput of whole answers, TTFT of single streams, and CPU time by process: per second without requests, and
per token of streams beside that.
plain: one server whose engine has two cores. ray: two replicas of one core. The machine must be idle.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from bench.asking import Ask
from bench.clients import call
from bench.models import gguf
from bench.prompts import random_tokens
from chaos_parts.ray_server import RayServer
from chaos_parts.server import KillableServer, Server

_STREAMS, _FIRST_TOKENS, _IDLE_S = 8, 24, 10.0
_ANSWERS = 8
"""For each client. With two, a quarter of the time was the end, when not all replicas have work."""
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
_KINDS = ("plain", "ray")


@dataclass
class Figures:
    tokens_per_s: float
    first_token_ms: float
    token_ms: Counter[str]
    """CPU time by process for each token of streams, beside the idle load."""
    idle_ms: Counter[str]
    """CPU time by process in each second without requests."""

    @property
    def others_token_ms(self) -> float:
        return self.token_ms.total() - self.token_ms[_ENGINE]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=gguf, default="smollm2", help="default %(default)s")
    parser.add_argument("--clients", type=int, default=16, help="answers at once (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of all in turn; of tokens/s medians count")
    parser.add_argument("--only", nargs="+", choices=_KINDS, default=_KINDS)


def run(asked: argparse.Namespace) -> None:
    model = asked.model.resolve()  # replicas have another working directory
    found: dict[str, Figures] = {}
    rates: dict[str, list[float]] = defaultdict(list)
    for name in (*asked.only,) * asked.rounds:
        with tempfile.TemporaryDirectory(prefix="ray-bench-") as folder, ExitStack() as stack:
            server = _started(stack, name, Path(folder), model)
            found[name] = asyncio.run(_figures(server, asked.clients, asked.tokens))
        _tell(name, found[name])
        rates[name].append(found[name].tokens_per_s)
    for name, all_of_it in rates.items():
        found[name].tokens_per_s = statistics.median(all_of_it)
    if len(found) == len(_KINDS):
        _compare(found["ray"], found["plain"])


def _tell(name: str, one: Figures) -> None:
    def told(ms: Counter[str], digits: int) -> str:
        shown = [(who, spent) for who, spent in ms.most_common() if round(spent, digits)]
        return "  ".join(f"{who} {spent:.{digits}f}" for who, spent in shown)

    print(f"{name:6} {one.tokens_per_s:7.1f} tokens/s   first token {one.first_token_ms:6.1f} ms")
    print(f"       CPU ms a token:  {told(one.token_ms, 3)}")
    print(f"       CPU ms a second, without requests:  {told(one.idle_ms, 1)}", flush=True)


def _compare(ray: Figures, plain: Figures) -> None:
    more_ms = ray.others_token_ms - plain.others_token_ms
    share = more_ms / ray.token_ms[_ENGINE]
    print(
        f"ray against plain: throughput {ray.tokens_per_s / plain.tokens_per_s:.2f}, "
        f"first token {ray.first_token_ms - plain.first_token_ms:+.1f} ms, "
        f"CPU a token {more_ms:+.3f} ms ({100 * share:+.1f} % of the engine's), "
        f"a second {ray.idle_ms.total() - plain.idle_ms.total():+.1f} ms"
    )


def _started(stack: ExitStack, name: str, folder: Path, model: Path) -> KillableServer:
    options = ("--jobs-db", "none")
    if name == "ray":
        return stack.enter_context(RayServer(model, folder / "ray.log", *options))
    return stack.enter_context(Server([f"chaos={model}"], folder / "plain.log", *options))


async def _figures(server: KillableServer, clients: int, tokens: int) -> Figures:
    await _whole(server, clients, 16, clients)
    began_s = time.monotonic()
    produced = await _whole(server, _ANSWERS * clients, tokens, clients)
    rate = produced / (time.monotonic() - began_s)
    first_ms = statistics.median([await _first_token_ms(server, n) for n in range(_FIRST_TOKENS)])
    began_s = time.monotonic()
    with _cpu(server) as busy:
        streamed = await _streamed(server, 2 * tokens)
    busy_s = time.monotonic() - began_s
    with _cpu(server) as idle:
        await asyncio.sleep(_IDLE_S)
    beside = {name: busy[name] - busy_s * idle[name] / _IDLE_S for name in busy}
    return Figures(rate, first_ms, _per(beside, streamed), _per(idle, _IDLE_S))


def _per(spent_s: Mapping[str, float], num: float) -> Counter[str]:
    return Counter({name: 1000 * seconds / num for name, seconds in spent_s.items()})


async def _whole(server: KillableServer, num: int, tokens: int, at_once: int) -> int:
    gate = asyncio.Semaphore(at_once)

    async def answer(number: int) -> int:
        prompt = f"Story {number}, told once upon a time:"
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        async with gate:
            answered = await call(server.port, "POST", "/v1/completions", msgspec.json.encode(body))
        return int(msgspec.json.decode(answered)["usage"]["completion_tokens"])

    return sum(await asyncio.gather(*map(answer, range(num))))


async def _streamed(server: KillableServer, tokens: int) -> int:
    clients = server.clients()
    asks = [Ask(prompt=random_tokens(12, "ray", n), max_tokens=tokens) for n in range(_STREAMS)]
    await clients.closed_loop(asks, _STREAMS)
    clients.check()
    return _STREAMS * tokens


async def _first_token_ms(server: KillableServer, number: int) -> float:
    """A pause before it makes requests independent of each other."""
    await asyncio.sleep(0.1)
    clients = server.clients()
    answer = await clients.send(Ask(prompt=random_tokens(3, "first", number), max_tokens=2))
    clients.check()
    assert answer.ttft_s is not None
    return 1000 * answer.ttft_s


@contextmanager
def _cpu(server: KillableServer) -> Iterator[dict[str, float]]:
    before = _times(server)
    spent: dict[str, float] = defaultdict(float)
    yield spent
    for process, (name, seconds) in _times(server).items():
        spent[name] += seconds - before.get(process, (name, 0.0))[1]


def _times(server: KillableServer) -> dict[psutil.Process, tuple[str, float]]:
    found = {}
    root = psutil.Process(server.pid)
    rest = _OTHER if isinstance(server, RayServer) else _SERVER
    for one in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times, line = one.cpu_times(), " ".join(one.cmdline())
            name = next((name for title, name in _TITLES.items() if title in line), rest)
            found[one] = (name, times.user + times.system)
    return found
