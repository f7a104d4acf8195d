"""Statistics of the KV cache, clearing it, and which requests share it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from openai_cpu_server.api.admin.stats import EngineCache, cache_stats
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.replica import cache_namespace
from openai_cpu_server.engine_client.client import EngineClient
from tests.api.serving import OPTIONS, api, client, new_engine, running
from tests.api.talking import MESSAGES, error_of
from tests.fakes import FAKE_INFO
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KV = KVStats(
    block_tokens=16,
    pool_blocks=256,
    pool_blocks_used=10,
    pool_blocks_shared=4,
    cache_block_tokens=64,
    cache_capacity_blocks=100,
    cache_blocks=7,
    cache_states=2,
    cache_capacity_bytes=100 * 64 * 2,
    cache_bytes=7 * 64 * 2 + 2 * 1000,
    cache_evictions=3,
    prompt_tokens=400,
    cached_tokens=100,
)
INFO = msgspec.structs.replace(FAKE_INFO, kv_bytes_per_token=2, context_trained=1000)
PROMPT = list(range(2, 202))


@pytest.fixture(scope="module")
async def one_engine() -> AsyncIterator[EngineClient]:
    async with running(new_engine(cache_bytes=64 * 100)) as engine:
        yield engine


@pytest.fixture
async def http(one_engine: EngineClient) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an engine whose cache is empty."""
    one_engine.clear_cache()
    async with client(api(one_engine)) as http:
        yield http


async def stats_of(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get("/v1/cache/stats")).json())


async def cached(http: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: object) -> int:
    """Number of the long prompt's tokens that come from the cache."""
    body = {"prompt": PROMPT, "max_tokens": 2, "seed": 1, **fields}
    response = await http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 200
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_stats_of_one_engine() -> None:
    assert msgspec.to_builtins(cache_stats([EngineCache(KV, INFO, 3)])) == {
        "object": "cache.stats",
        "pool": {
            "block_tokens": 16,
            "total": {"blocks": 256, "tokens": 4096, "bytes": 8192},
            "used": {"blocks": 10, "tokens": 160, "bytes": 320},
            "shared": {"blocks": 4, "tokens": 64, "bytes": 128},
        },
        "cache": {
            "block_tokens": 64,
            "capacity": {"blocks": 100, "tokens": 6400, "bytes": 12800},
            "used": {"blocks": 7, "tokens": 448, "bytes": 2896},
            "evictions": 3,
        },
        "savings": {
            "running_requests": 3,
            "full_contexts_bytes": 6000,
            "pool_used_bytes": 320,
            "saved_bytes": 5680,
        },
        "prompt_tokens": 400,
        "cached_tokens": 100,
        "hit_rate": 0.25,
        "answers": None,
    }


def test_without_requests_the_hit_rate_is_null_and_the_saving_zero() -> None:
    idle = cache_stats([EngineCache(msgspec.structs.replace(KV, prompt_tokens=0, cached_tokens=0), INFO, 0)])
    assert idle.hit_rate is None
    assert idle.savings is not None
    assert idle.savings.saved_bytes == 0


async def test_stats_count_served_requests(http: httpx.AsyncClient, one_engine: EngineClient) -> None:
    before = await stats_of(http)
    found = [await cached(http) for _ in range(2)]
    await eventually(lambda: one_engine.status().kv_tokens_used == 0)
    stats = await stats_of(http)
    assert found[0] == 0 < found[1] < 200
    counted = [stats[name] - before[name] for name in ("prompt_tokens", "cached_tokens")]
    assert counted == [400, found[1]]
    assert stats["pool"]["total"] == {"blocks": 256, "tokens": 4096, "bytes": 4096}
    assert stats["cache"]["used"] == {"blocks": 4, "tokens": 256, "bytes": 256}
    assert stats["savings"]["running_requests"] == 0


async def test_a_cleared_cache_is_empty(http: httpx.AsyncClient) -> None:
    assert await cached(http) == 0
    response = await http.delete("/v1/cache")
    assert (response.status_code, response.content) == (204, b"")
    assert await cached(http) == 0
    assert await cached(http) > 0


async def test_without_an_engine_the_routes_are_unavailable() -> None:
    async with client(api(new_engine())) as http:  # never started
        for response in (await http.get("/v1/cache/stats"), await http.delete("/v1/cache")):
            assert (response.status_code, error_of(response)["code"]) == (503, "engine_unavailable")


async def test_choices_share_the_firsts_prompt_and_usage_shows_it(http: httpx.AsyncClient) -> None:
    before = await stats_of(http)
    assert await cached(http, n=4) == 0
    assert 0 < await cached(http, n=4) < 200
    num_cached = (await stats_of(http))["cached_tokens"] - before["cached_tokens"]
    assert num_cached > 2 * 3 * 128, "the last three of each four choices share nearly all"


async def test_prompts_of_different_salts_are_not_shared(http: httpx.AsyncClient) -> None:
    assert await cached(http) == await cached(http, cache_salt="a") == 0
    assert await cached(http, cache_salt="b") == 0
    assert await cached(http, cache_salt="a") > 0
    assert await cached(http) > 0


@pytest.mark.parametrize("isolates", [True, False])
async def test_keys_do_not_share_prompts_with_isolate_by_key(
    one_engine: EngineClient, isolates: bool
) -> None:
    one_engine.clear_cache()
    options = msgspec.structs.replace(OPTIONS, isolate_by_key=isolates)
    async with client(api(one_engine, options)) as http:
        assert await cached(http, {"authorization": "Bearer ann"}) == 0
        assert (await cached(http, {"authorization": "Bearer bob"}) > 0) is not isolates
        assert (await cached(http) > 0) is not isolates
        assert await cached(http, {"authorization": "bearer  ann "}) > 0


async def test_a_prompt_of_claude_code_is_cached_whatever_its_billing_line(
    http: httpx.AsyncClient,
) -> None:
    usages = []
    for number in ("fa690", "0aaa9"):
        lines = (f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cch={number};", "Help. " * 50)
        system = [{"type": "text", "text": line} for line in lines]
        body = {"model": "fake", "messages": MESSAGES, "max_tokens": 8, "system": system}
        usages.append((await http.post("/v1/messages", json=body)).json()["usage"])
    first, second = usages
    assert first["cache_read_input_tokens"] == 0
    assert second["input_tokens"] == 1
    assert second["cache_read_input_tokens"] == first["input_tokens"] - 1


def test_each_pair_of_salt_and_key_has_its_namespace() -> None:
    pairs = [(None, None), ("a", None), (None, "a"), ("a", "b"), ("b", "a"), ("ab", None), (None, "ab")]
    pairs += [("", "ab"), ("ab", ""), ("null", None), ('a","b', None), (None, 'a","b')]
    names = [cache_namespace(salt=salt, key=key) for salt, key in pairs]
    assert len(set(names)) == len(pairs)
    assert names == [cache_namespace(salt=salt, key=key) for salt, key in pairs]
    assert names[0] == ""
