"""*neighbours*: interactive requests of one model beside its own batch work, and beside other models in
the same server: batch work, interactive requests, and embedding without pause."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

import msgspec
from bench.bench import Bench
from bench.clients import call
from bench.prompts import short_texts
from bench.results import Figure, Goal, Rounds, WorkloadResult, percentile, ratios
from bench.servers import Server
from bench.traffic import BenchRequest, first_token_times
from bench.workloads.mixed import (
    Size,
    Window,
    batch_requests,
    idle_requests,
    interactive_requests,
    median_s,
    run_window,
    window_arrivals,
)

_OTHER, _EMBEDDER = "other", "minilm"
_OWN_BATCH, _BATCH, _PEOPLE, _EMBEDDING = (
    "its own batch work",
    "another model's batch work",
    "another model's interactive requests",
    "endless embedding",
)
FULL = Size(idle_requests=8, ramp_s=4, window_s=25, batch_prompt=300, batch_output=60)
QUICK = replace(FULL, idle_requests=3, ramp_s=0.5, window_s=3, every_s=0.5)
_TEXTS, _QUICK_TEXTS = 2048, 64


@dataclass(frozen=True)
class Round:
    idle_ttft_s: list[float]
    windows: dict[str, Window]
    embedded_per_s: float

    def ttft_s(self, company: str | None, percent: float) -> float:
        return self.windows[company].ttft_s(percent) if company else percentile(self.idle_ttft_s, percent)


def workload(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    others = ("--model", f"{_OTHER}={bench.model}", "--model", _EMBEDDER)
    rounds = []
    for number in range(bench.rounds):
        bench.say(f"round {number + 1} of {bench.rounds}: three models")
        # The benchmark's model comes first, so it answers requests that name none.
        with bench.server("--ctx-size", str(size.pool_tokens), *others) as server:
            rounds.append(asyncio.run(_round(bench, size, server, number)))

    def goal(what: str, company: str, against: str | None, limit: float) -> Goal:
        share = ratios(_ttft(rounds, company, 95), _ttft(rounds, against, 95))
        return Goal.at_most(f"interactive TTFT p95 beside {what}", share, limit, "x")

    return WorkloadResult(
        name="neighbours",
        sizes=f"{size.in_words} at random, on average "
        f"every two times what one takes alone; windows of {size.window_s:g} s at least; "
        f"the other model is the same file, and {_EMBEDDER} embeds, all in one server",
        goals=(
            goal(f"{_BATCH}, against beside its own", _BATCH, _OWN_BATCH, 1.0),
            goal(f"{_EMBEDDING}, against idle", _EMBEDDING, None, 2.0),
        ),
        figures=tuple(_figures(rounds)),
    )


def _ttft(rounds: list[Round], company: str | None, percent: float) -> Rounds:
    return Rounds.of(rounds, lambda one: one.ttft_s(company, percent))


def _figures(rounds: list[Round]) -> Iterator[Figure]:
    for company in (None, *rounds[0].windows):
        for percent in (50, 95):
            what = f"interactive TTFT p{percent} beside {company or 'nobody'}"
            yield Figure(what=what, rounds=_ttft(rounds, company, percent), unit="s")
        if company:
            gaps = Rounds.of(rounds, lambda one, company=company: one.windows[company].gap_s(95))
            yield Figure(what=f"inter-token latency p95 beside {company}", rounds=gaps, unit="s")
    for company in (_OWN_BATCH, _BATCH):
        batch = Rounds.of(rounds, lambda one, company=company: one.windows[company].batch_output_per_s)
        yield Figure(what=f"batch output: {company}", rounds=batch, unit="tok/s")
    embedded = Rounds.of(rounds, lambda one: one.embedded_per_s)
    yield Figure(what="embedded beside chats", rounds=embedded, unit="texts/s")


async def _round(bench: Bench, size: Size, server: Server, number: int) -> Round:
    bench.say("  idle")
    await server.clients().send(BenchRequest(prompt=(300, 301), max_tokens=2, model=_OTHER))
    idle = await idle_requests(bench.prompts, size, server, number)
    size = size.paced(median_s(idle))
    windows: dict[str, Window] = {}
    for company, jobs, clients in (
        (_OWN_BATCH, batch_requests(bench.prompts, size, "own", number), size.batch_clients),
        (_BATCH, _of_other(batch_requests(bench.prompts, size, "others", number)), size.batch_clients),
        (_PEOPLE, _of_other(interactive_requests(bench.prompts, size, "people", number)), 1),
        (_EMBEDDING, iter(()), 1),
    ):
        bench.say(f"  beside {company}")
        shorts = interactive_requests(bench.prompts, size, company, number)
        arrivals = window_arrivals(bench, size, number)
        num_texts = (_QUICK_TEXTS if bench.is_quick else _TEXTS) if company is _EMBEDDING else 0
        async with _embedding(server, num_texts) as embedded:
            load = run_window(replace(size, batch_clients=clients), server, jobs, shorts, arrivals)
            began_s = time.perf_counter()
            windows[company] = await load
            embedded_per_s = len(embedded) * num_texts / (time.perf_counter() - began_s)
    return Round(first_token_times(idle), windows, embedded_per_s)


def _of_other(requests: Iterator[BenchRequest]) -> Iterator[BenchRequest]:
    return (msgspec.structs.replace(request, model=_OTHER) for request in requests)


@contextlib.asynccontextmanager
async def _embedding(server: Server, num_texts: int) -> AsyncIterator[list[int]]:
    """Embed without pause meanwhile, if there are texts; yield sizes of answers."""
    body = {"model": _EMBEDDER, "input": short_texts(num_texts), "encoding_format": "base64"}
    answers: list[int] = []

    async def embed_on() -> None:
        while num_texts:
            answers.append(len(await call(server.port, "POST", "/v1/embeddings", json.dumps(body).encode())))

    task = asyncio.create_task(embed_on())
    try:
        yield answers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
