"""*embeddings*: chats with one model beside a client who embeds with another without pause."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.asking import Ask, Trace, first_token_times
from bench.bench import Bench
from bench.contestants import Variant
from bench.http_client import call
from bench.load import fixed_arrivals
from bench.prompts import random_tokens, short_texts
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Server
from bench.stats import Rounds, percentile, ratios

_EMBEDDER = "minilm"
_PATH = "/v1/embeddings"


@dataclass(frozen=True)
class Size:
    window_s: float
    every_s: float
    """A chat comes so often."""
    inputs: int
    """Texts of one request to embed."""
    prompt_tokens: int = 60
    output_tokens: int = 24


FULL = Size(window_s=30.0, every_s=2.0, inputs=2048)
QUICK = Size(window_s=4.0, every_s=1.0, inputs=64)


@dataclass
class Phase:
    """What was seen within a window."""

    traces: list[Trace] = field(default_factory=list)
    embedded: int = 0
    """Texts of the requests that were answered within it."""
    seconds: float = 1.0

    @property
    def ttft_p95_s(self) -> float:
        return percentile(first_token_times(self.traces), 95)

    @property
    def embedded_per_s(self) -> float:
        return self.embedded / self.seconds


@dataclass(frozen=True)
class Round:
    idle: Phase
    beside: Phase
    alone: Phase


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    rounds = []
    for number in range(bench.rounds):
        bench.say(f"round {number + 1} of {bench.rounds}: chats beside embedding")
        # The benchmark's model comes first, so it answers requests that name none.
        with bench.server(Variant.WHOLE, "--model", _EMBEDDER) as server:
            rounds.append(asyncio.run(_round(server, size, number)))
    idle, beside = _of(rounds, lambda r: r.idle.ttft_p95_s), _of(rounds, lambda r: r.beside.ttft_p95_s)
    return WorkloadResult(
        name="embeddings",
        sizes=f"chats of {size.prompt_tokens} + {size.output_tokens} tokens every {size.every_s:g} s for "
        f"{size.window_s:g} s; one client embeds {size.inputs} short texts a request, without pause, with "
        f"{_EMBEDDER} in the same server",
        goals=(
            Goal(
                what="chat TTFT p95 beside endless embedding, against idle",
                rounds=ratios(beside, idle),
                direction=Direction.AT_MOST,
                limit=2.0,
                unit="x",
            ),
        ),
        figures=tuple(_figures(rounds)),
    )


def _of(rounds: list[Round], value: Callable[[Round], float]) -> Rounds:
    return Rounds.of(rounds, value)


def _figures(rounds: list[Round]) -> Iterator[Figure]:
    for name, value in (
        ("idle", lambda r: r.idle.ttft_p95_s),
        ("beside endless embedding", lambda r: r.beside.ttft_p95_s),
    ):
        yield Figure(what=f"chat TTFT p95, {name}", rounds=_of(rounds, value), unit="s")
    for name, value in (
        ("nobody", lambda r: r.alone.embedded_per_s),
        ("chats", lambda r: r.beside.embedded_per_s),
    ):
        yield Figure(what=f"embedded beside {name}", rounds=_of(rounds, value), unit="texts/s")


async def _round(server: Server, size: Size, number: int) -> Round:
    idle = Phase()
    await _chats(server, size, number, "idle", idle)
    beside = Phase()
    embedding = asyncio.create_task(_embed_on(server, size, beside))
    try:
        await _chats(server, size, number, "beside", beside)
    finally:
        embedding.cancel()
    alone = Phase()
    embedding = asyncio.create_task(_embed_on(server, size, alone))
    await asyncio.sleep(size.window_s / 2)
    alone.seconds = size.window_s / 2
    embedding.cancel()
    return Round(idle, beside, alone)


async def _chats(server: Server, size: Size, number: int, name: str, phase: Phase) -> None:
    clients, begin_s = server.clients(), time.perf_counter()
    offsets = fixed_arrivals(size.every_s, size.window_s)
    asks = [
        Ask(
            prompt=random_tokens(size.prompt_tokens, f"{name}-{i}", number),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(len(offsets))
    ]
    await clients.open_loop(asks, offsets)
    clients.check()
    phase.traces += clients.traces
    phase.seconds = time.perf_counter() - begin_s


async def _embed_on(server: Server, size: Size, phase: Phase) -> None:
    body = json.dumps({"model": _EMBEDDER, "input": short_texts(size.inputs), "encoding_format": "base64"})
    while True:
        await call(server.port, "POST", _PATH, body.encode())
        phase.embedded += size.inputs
