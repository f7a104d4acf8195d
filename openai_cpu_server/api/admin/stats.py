from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.admin.health import QueueSizes, queue_sizes
from openai_cpu_server.api.state import AppState, response_of
from openai_cpu_server.contract.engine import Engine, EngineState, unavailable
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import EngineUnavailable, wrong_value
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import ADMIN, METRICS
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import Distribution
from openai_cpu_server.observe.telemetry import TimeSpan


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds, or None without a measurement."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Requests and batch rows that generate, embed or score, counted when they end."""

    seconds: float
    processed: int
    failed: int
    latency_ms: Times
    queue_ms: Times
    ttft_ms: Times
    inter_token_ms: Times


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Computed tokens per second."""

    output_now: float
    """Last 10 to 20 seconds."""
    output_since_start: float
    computed_now: float
    """Includes prompt tokens, except cached ones."""
    computed_since_start: float


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    drafted_since_start: int
    accepted_since_start: int
    acceptance_rate: float | None
    """Last five minutes. None without drafts."""


class MemoryEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """KV cells in use, compared with a server that reserves a whole context for each running request."""

    running_requests: int
    kv_bytes_held: int
    full_contexts_bytes: int
    saved_share: float | None
    """1 - held / full. None while idle."""


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of the engine process."""

    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "stats"
    uptime_s: float
    engine: str
    restarts: int
    queue: dict[str, QueueSizes]
    total: Calls
    recent: Calls
    """Last five minutes."""
    throughput: Throughput
    speculation: Speculation
    memory: MemoryEfficiency | None
    """Set, like `cache`, after the first step."""
    cache: CacheUse | None


class Amount(msgspec.Struct, frozen=True):
    """Amount in three units, in whole blocks."""

    blocks: int
    tokens: int
    bytes: int


class KvPool(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    total: Amount
    used: Amount
    shared: Amount
    """Blocks that several requests hold."""


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    capacity: Amount
    used: Amount
    evictions: int


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison with a server that reserves a whole context for each running request."""

    running_requests: int
    full_contexts_bytes: int
    pool_used_bytes: int
    saved_bytes: int


class AnswerCacheSize(msgspec.Struct, frozen=True):
    """Cached answers, possibly with expired ones."""

    entries: int
    bytes: int


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the start of the engine process."""

    object: str = "cache.stats"
    pool: KvPool | None
    """Set, like `cache` and `savings`, after the first step."""
    cache: PrefixCache | None
    savings: Savings | None
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    answers: AnswerCacheSize | None = None
    """Null without an answer cache, or if it fails."""


_CACHES = ("prompts", "answers")


class StatsRoutes:
    def __init__(self, state: AppState) -> None:
        self._models = state.models
        self._answer_lookup = state.answer_lookup
        self._recent = state.telemetry.recent

    @ApiRoute(
        "DELETE",
        "/v1/cache",
        ADMIN,
        "Cache",
        query={"only": {"enum": list(_CACHES), "description": "this one alone"}},
        status=204,
        errors=(400,),
    )
    async def clear_cache(self, request: Request) -> Response:
        """Clear the prompt cache and the answer cache, or one of them."""
        only = request.query_params.get("only")
        if only not in (None, *_CACHES):
            raise wrong_value("only", "'prompts' or 'answers'")
        engines = self._engines_with_prompts() if only != "answers" else []
        if self._answer_lookup is not None and only != "prompts":
            await self._answer_lookup.cache.clear()
        for engine in engines:
            with suppress(EngineUnavailable):  # it has ended meanwhile, and its cache with it
                engine.clear_cache()
        return Response(status_code=204)

    @ApiRoute("GET", "/v1/cache/stats", ADMIN, "Cache", answer=CacheStats, errors=(503,))
    async def cache_stats(self, request: Request) -> Response:
        """Return the use of both tiers of KV memory and of the answer cache."""
        if not (caches := caches_of(self._models)):
            self._models.default.loaded()
        size = await self._answer_lookup.cache.measure() if self._answer_lookup is not None else None
        answers = AnswerCacheSize(*size) if size is not None else None
        return json_response(msgspec.structs.replace(cache_stats(caches), answers=answers))

    @ApiRoute("GET", "/v1/stats", METRICS, "Operation", answer=Stats)
    async def stats(self, request: Request) -> Response:
        """Return counts, times and rates since the start and of the last five minutes."""
        status, recent = self._models.status(), self._recent
        total, window, moment = TimeSpan(recent.uptime_s, recent.total), recent.window(), recent.moment()
        drafted, accepted = window.sums.drafted_tokens, window.sums.accepted_tokens
        cache = cache_stats(caches_of(self._models))
        return json_response(
            Stats(
                uptime_s=round(recent.uptime_s, 1),
                engine=status.state.value,
                restarts=status.restarts,
                queue=queue_sizes(status),
                total=_calls(total),
                recent=_calls(window),
                throughput=Throughput(
                    output_now=round(moment.sums.output_tokens / moment.seconds, 2),
                    output_since_start=round(total.sums.output_tokens / total.seconds, 2),
                    computed_now=round(moment.sums.computed_tokens / moment.seconds, 2),
                    computed_since_start=round(total.sums.computed_tokens / total.seconds, 2),
                ),
                speculation=Speculation(
                    drafted_since_start=total.sums.drafted_tokens,
                    accepted_since_start=total.sums.accepted_tokens,
                    acceptance_rate=round(accepted / drafted, 4) if drafted else None,
                ),
                memory=None if cache.savings is None else _memory(cache.savings),
                cache=None if cache.savings is None else response_of(CacheUse, cache),
            )
        )

    def _engines_with_prompts(self) -> list[Engine]:
        """Include a model without a process, which may be about to read a cache file."""
        engines = [model.engine for model in self._models.current]
        for engine in engines:
            if engine.state not in (EngineState.READY, EngineState.ASLEEP, EngineState.FAILED):
                raise unavailable(engine.status())
        return engines


def _calls(span: TimeSpan) -> Calls:
    sums = span.sums
    return Calls(
        seconds=round(span.seconds, 1),
        processed=sums.calls,
        failed=sums.failed,
        latency_ms=_times(sums.latency),
        queue_ms=_times(sums.queue),
        ttft_ms=_times(sums.ttft),
        inter_token_ms=_times(sums.gaps),
    )


def _times(distribution: Distribution) -> Times:
    quantiles = (distribution.quantile_s(share) for share in (0.5, 0.9, 0.99))
    mean, p50, p90, p99 = (
        None if seconds is None else round(1000 * seconds, 3) for seconds in (distribution.mean_s, *quantiles)
    )
    return Times(mean=mean, p50=p50, p90=p90, p99=p99)


def _memory(savings: Savings) -> MemoryEfficiency:
    full = savings.full_contexts_bytes
    return response_of(
        MemoryEfficiency,
        savings,
        kv_bytes_held=savings.pool_used_bytes,
        saved_share=round(savings.saved_bytes / full, 4) if full else None,
    )


class EngineCache(NamedTuple):
    kv: KVStats
    info: ModelInfo
    num_running: int


def caches_of(models: Iterable[ServedModel]) -> list[EngineCache]:
    return [
        EngineCache(kv, info, sum(model.engine.status().running.values()))
        for model in models
        if (kv := model.engine.kv_stats()) is not None and (info := model.engine.info) is not None
    ]


def cache_stats(held: Sequence[EngineCache]) -> CacheStats:
    prompt_tokens = sum(each.kv.prompt_tokens for each in held)
    cached_tokens = sum(each.kv.cached_tokens for each in held)
    return CacheStats(
        pool=_pool(held) if held else None,
        cache=_cache(held) if held else None,
        savings=_savings(held) if held else None,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        hit_rate=cached_tokens / prompt_tokens if prompt_tokens else None,
    )


def _pool(held: Sequence[EngineCache]) -> KvPool:
    amount = partial(_amount, held, tokens_of=lambda kv: kv.block_tokens)
    return KvPool(
        block_tokens=held[0].kv.block_tokens,
        total=amount(lambda kv: kv.pool_blocks),
        used=amount(lambda kv: kv.pool_blocks_used),
        shared=amount(lambda kv: kv.pool_blocks_shared),
    )


def _cache(held: Sequence[EngineCache]) -> PrefixCache:
    amount = partial(_amount, held, tokens_of=lambda kv: kv.cache_block_tokens)
    with_states = sum(each.kv.cache_bytes for each in held)
    return PrefixCache(
        block_tokens=held[0].kv.cache_block_tokens,
        capacity=amount(lambda kv: kv.cache_capacity_blocks),
        used=msgspec.structs.replace(amount(lambda kv: kv.cache_blocks), bytes=with_states),
        evictions=sum(each.kv.cache_evictions for each in held),
    )


def _savings(held: Sequence[EngineCache]) -> Savings:
    """Clamp at 0, because the last step's pool may hold a request that has just ended."""
    full = sum(each.num_running * each.info.context_limit * each.info.kv_bytes_per_token for each in held)
    used = sum(each.kv.pool_tokens_used * each.info.kv_bytes_per_token for each in held)
    return Savings(
        running_requests=sum(each.num_running for each in held),
        full_contexts_bytes=full,
        pool_used_bytes=used,
        saved_bytes=max(0, full - used),
    )


def _amount(
    held: Sequence[EngineCache], blocks_of: Callable[[KVStats], int], tokens_of: Callable[[KVStats], int]
) -> Amount:
    blocks = [blocks_of(each.kv) for each in held]
    tokens = [count * tokens_of(each.kv) for count, each in zip(blocks, held, strict=True)]
    sizes = [count * each.info.kv_bytes_per_token for count, each in zip(tokens, held, strict=True)]
    return Amount(sum(blocks), sum(tokens), sum(sizes))


ROUTER = ApiRouter[AppState](StatsRoutes)
