"""*other people's cells*: running requests beside a full prefix cache, which should not slow them down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from bench.asking import Ask
from bench.bench import Bench
from bench.clients import Clients, LoadFailed, cache_stats, clear_cache
from bench.prompts import RandomPrompts
from bench.results import Figure, Goal, Rounds, WorkloadResult, percentile, ratios
from bench.servers import Server
from bench.workloads.batches import questions

from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell

_RUNNING = 8
_FILL_CLIENTS = 8
_ROOM = 1.25
"""Size of the cache in times of its content, which then stays beside the measured requests."""
_STRETCH = 8
"""Tokens in a stretch: a client that wakes late sees two tokens at once."""
_MIB = 2**20


@dataclass(frozen=True)
class Size:
    cached_tokens: int
    fill_prompt: int
    prompt_tokens: int
    output_tokens: int


FULL = Size(cached_tokens=100_000, fill_prompt=512, prompt_tokens=64, output_tokens=96)
QUICK = Size(cached_tokens=10_240, fill_prompt=512, prompt_tokens=64, output_tokens=48)


def workload(bench: Bench) -> WorkloadResult:
    """Two servers live side by side, one with an empty cache and one with a full one, and work in turns."""
    size = QUICK if bench.is_quick else FULL
    options = ("--ctx-size", "8192", "--kv-type", "f16", "--cache-mb", str(_cache_mb(bench, size)))
    empty_ms, full_ms = [], []
    with bench.server(*options) as empty, bench.server(*options) as full:
        bench.say(f"filling a cache with {size.cached_tokens} tokens")
        asyncio.run(_fill(full, size))
        for number in range(bench.rounds):
            bench.say(f"round {number + 1} of {bench.rounds}")
            empty_ms.append(asyncio.run(_measure(empty, size, number, is_cleared=True)))
            full_ms.append(asyncio.run(_measure(full, size, number)))
        cached = asyncio.run(_cached_tokens(full))
    if cached < size.cached_tokens:
        raise LoadFailed(f"only {cached} of {size.cached_tokens} tokens were cached")
    return _result(size, cached, Rounds(tuple(empty_ms)), Rounds(tuple(full_ms)))


def _result(size: Size, cached: int, empty: Rounds, full: Rounds) -> WorkloadResult:
    return WorkloadResult(
        name="other-cells",
        sizes=f"{_RUNNING} running sequences of {size.prompt_tokens} + {size.output_tokens} tokens; "
        f"{cached} tokens in the full cache",
        goals=(
            Goal.at_most(
                "step time with a full prefix cache, against an empty one", ratios(full, empty), 1.05, "x"
            ),
        ),
        figures=(
            Figure(what="step, empty cache", rounds=empty, unit="ms"),
            Figure(what="step, full cache", rounds=full, unit="ms"),
        ),
    )


def _cache_mb(bench: Bench, size: Size) -> int:
    cell_bytes = bytes_per_cell(GgufHeader(bench.model), KVType.F16)
    return int(_ROOM * size.cached_tokens * cell_bytes / _MIB) + 64


async def _fill(server: Server, size: Size) -> None:
    clients = Clients(server.port)
    lengths = [1] * -(-size.cached_tokens // size.fill_prompt)
    await clients.closed_loop(questions(RandomPrompts(), size.fill_prompt, lengths, "fill"), _FILL_CLIENTS)
    clients.check()


async def _cached_tokens(server: Server) -> int:
    stats = await cache_stats(server.port)
    return stats.cache.used.tokens if stats.cache else 0


async def _measure(server: Server, size: Size, number: int, *, is_cleared: bool = False) -> float:
    if is_cleared:
        await clear_cache(server.port)
    clients = Clients(server.port)
    await clients.closed_loop(_asks(size, number), _RUNNING)
    clients.check()
    last_start = max(trace.chunk_times[0] for trace in clients.traces)
    first_end = min(trace.chunk_times[-1] for trace in clients.traces)
    steps_s = [
        (end - begin) / _STRETCH
        for trace in clients.traces
        for begin, end in zip(trace.chunk_times, trace.chunk_times[_STRETCH:], strict=False)
        if last_start <= begin and end <= first_end
    ]
    if not steps_s:
        raise LoadFailed("the sequences did not run side by side")
    return 1000 * percentile(steps_s, 50)


def _asks(size: Size, number: int) -> list[Ask]:
    return questions(RandomPrompts(), size.prompt_tokens, [size.output_tokens] * _RUNNING, "step", number)
