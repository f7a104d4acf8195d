"""`GET /v1/stats`: how the server has been doing, since its start and in the last minutes."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.admin.cache import cache_stats, held_by
from openai_cpu_server.api.admin.health import QueueSizes, queue_sizes
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import METRICS
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.observe.ended import Distribution
from openai_cpu_server.observe.recent import TimeSpan


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
    """Failed calls, including those whose client has left."""
    latency_ms: Times
    queue_ms: Times
    ttft_ms: Times
    inter_token_ms: Times


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """Computed tokens per second."""

    output_now: float
    """Average of the last 10 to 20 seconds."""
    output_since_start: float
    computed_now: float
    """Includes prompt tokens, except those from the prefix cache."""
    computed_since_start: float


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    drafted_since_start: int
    accepted_since_start: int
    acceptance_rate: float | None
    """Rate of the last five minutes, or None without drafts."""


class MemoryEfficiency(msgspec.Struct, frozen=True, kw_only=True):
    """KV cells in use, compared with a server that reserves a whole context for each running request."""

    running_requests: int
    kv_bytes_held: int
    full_contexts_bytes: int
    saved_share: float | None
    """1 - held / full, or None while idle."""


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
    """Set, like `cache`, after the engine's first step."""
    cache: CacheUse | None


class StatsRoutes:
    def __init__(self, parts: AppState) -> None:
        self._models = parts.models
        self._recent = parts.watch.recent

    @ApiRoute("GET", "/v1/stats", METRICS, "Operation", answer=Stats)
    async def stats(self, request: Request) -> Response:
        """Return counts, times and rates since the start and of the last five minutes."""
        status, recent = self._models.status(), self._recent
        total = TimeSpan(recent.uptime_s, recent.total)
        memory, cache = self._kv()
        return json_response(
            Stats(
                uptime_s=round(recent.uptime_s, 1),
                engine=status.state.value,
                restarts=status.restarts,
                queue=queue_sizes(status),
                total=_calls(total),
                recent=_calls(recent.window()),
                throughput=_throughput(total, recent.moment()),
                speculation=_speculation(total, recent.window()),
                memory=memory,
                cache=cache,
            )
        )

    def _kv(self) -> tuple[MemoryEfficiency | None, CacheUse | None]:
        stats = cache_stats(held_by(self._models))
        if stats.savings is None:
            return None, None
        saved, full = stats.savings, stats.savings.full_contexts_bytes
        memory = MemoryEfficiency(
            running_requests=saved.running_requests,
            kv_bytes_held=saved.pool_used_bytes,
            full_contexts_bytes=full,
            saved_share=round(saved.saved_bytes / full, 4) if full else None,
        )
        return memory, CacheUse(
            prompt_tokens=stats.prompt_tokens, cached_tokens=stats.cached_tokens, hit_rate=stats.hit_rate
        )


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
    return Times(
        mean=_ms(distribution.mean_s),
        p50=_ms(distribution.quantile_s(0.5)),
        p90=_ms(distribution.quantile_s(0.9)),
        p99=_ms(distribution.quantile_s(0.99)),
    )


def _throughput(total: TimeSpan, moment: TimeSpan) -> Throughput:
    return Throughput(
        output_now=round(moment.sums.output_tokens / moment.seconds, 2),
        output_since_start=round(total.sums.output_tokens / total.seconds, 2),
        computed_now=round(moment.sums.computed_tokens / moment.seconds, 2),
        computed_since_start=round(total.sums.computed_tokens / total.seconds, 2),
    )


def _speculation(total: TimeSpan, window: TimeSpan) -> Speculation:
    drafted, accepted = window.sums.drafted_tokens, window.sums.accepted_tokens
    return Speculation(
        drafted_since_start=total.sums.drafted_tokens,
        accepted_since_start=total.sums.accepted_tokens,
        acceptance_rate=round(accepted / drafted, 4) if drafted else None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


ROOM = ApiRouter[AppState](StatsRoutes)
