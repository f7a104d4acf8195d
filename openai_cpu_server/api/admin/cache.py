"""`/v1/cache`: use and savings of KV memory and the answer cache, and clearing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.parts import AppState
from openai_cpu_server.contract.engine import Engine, EngineState, unavailable
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.errors import EngineUnavailable, wrong_value
from openai_cpu_server.http.errors import json_response
from openai_cpu_server.http.keys import ADMIN
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.served import ServedModel


class Amount(msgspec.Struct, frozen=True):
    """One amount in three units, in whole blocks."""

    blocks: int
    tokens: int
    bytes: int


class KvPool(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    total: Amount
    used: Amount
    shared: Amount
    """Used blocks that several requests hold."""


class PrefixCache(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    capacity: Amount
    used: Amount
    evictions: int


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison with a server that reserves a whole context for each running request."""

    running_requests: int
    full_contexts_bytes: int
    """`running_requests` times the size of a context."""
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
    """Set, like `cache` and `savings`, after the engine's first step."""
    cache: PrefixCache | None
    savings: Savings | None
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    answers: AnswerCacheSize | None = None
    """Answer cache, or None if there is none or it fails."""


NO_STATS = CacheStats(pool=None, cache=None, savings=None, prompt_tokens=0, cached_tokens=0, hit_rate=None)


ONLY = ("prompts", "answers")
_HAVE_NONE = (EngineState.LOADING, EngineState.FAILED)


_route = partial(ApiRoute, access=ADMIN, tag="Cache")


class CacheRoutes:
    def __init__(self, parts: AppState) -> None:
        self._models = parts.models
        self._recall = parts.recall

    @_route(
        "DELETE",
        "/v1/cache",
        query={"only": {"enum": list(ONLY), "description": "this one alone"}},
        status=204,
        errors=(400,),
    )
    async def clear(self, request: Request) -> Response:
        """Clear the prompt cache and the answer cache, or one of them."""
        only = request.query_params.get("only")
        if only not in (None, *ONLY):
            raise wrong_value("only", "'prompts' or 'answers'")
        engines = self._with_prompts() if only != "answers" else []
        if self._recall is not None and only != "prompts":
            await self._recall.clear()
        for engine in engines:
            with suppress(EngineUnavailable):  # it has ended meanwhile, and its cache with it
                engine.clear_cache()
        return Response(status_code=204)

    @_route("GET", "/v1/cache/stats", answer=CacheStats, errors=(503,))
    async def stats(self, request: Request) -> Response:
        """Return the use of both tiers of KV memory and of the answer cache."""
        self._models.default.loaded()
        size = await self._recall.size() if self._recall is not None else None
        answers = AnswerCacheSize(*size) if size is not None else None
        return json_response(msgspec.structs.replace(cache_stats(held_by(self._models)), answers=answers))

    def _with_prompts(self) -> list[Engine]:
        """Clearing needs all engines that may have a cache. A sleeping model may have one in a file."""
        models = self._models.current
        asked = [m.engine for m in models if len(models) == 1 or m.engine.state not in _HAVE_NONE]
        for engine in asked:
            if engine.state not in (EngineState.READY, EngineState.ASLEEP):
                raise unavailable(engine.status())
        return asked


class EngineCache(NamedTuple):
    kv: KVStats
    info: ModelInfo
    num_running: int


def held_by(models: Iterable[ServedModel]) -> list[EngineCache]:
    """Return the caches of engines, except those without a step."""
    found = []
    for model in models:
        kv, info = model.engine.kv_stats(), model.engine.info
        if kv is not None and info is not None:
            found.append(EngineCache(kv, info, sum(model.engine.status().running.values())))
    return found


def cache_stats(held: Sequence[EngineCache]) -> CacheStats:
    if not held:
        return NO_STATS
    prompt_tokens = sum(each.kv.prompt_tokens for each in held)
    cached_tokens = sum(each.kv.cached_tokens for each in held)
    return CacheStats(
        pool=_pool(held),
        cache=_cache(held),
        savings=_savings(held),
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
    return PrefixCache(
        block_tokens=held[0].kv.cache_block_tokens,
        capacity=amount(lambda kv: kv.cache_capacity_blocks),
        used=msgspec.structs.replace(
            amount(lambda kv: kv.cache_blocks),
            bytes=sum(each.kv.cache_bytes for each in held),  # with those of states
        ),
        evictions=sum(each.kv.cache_evictions for each in held),
    )


def _savings(held: Sequence[EngineCache]) -> Savings:
    """Never negative, because the last step's pool may hold a request that has just ended."""
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


ROOM = ApiRouter[AppState](CacheRoutes)
