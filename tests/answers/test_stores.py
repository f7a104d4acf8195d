"""The contract of every store: SQLite in memory and in a file, and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import Redis

from openai_cpu_server.answers.redis import RedisAnswers
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import (
    GROUP_LIMIT,
    AnswerEntry,
    AnswerStore,
    StoreBounds,
    StoreSize,
    direction,
)
from tests.answers.questions import direction_of
from tests.clock import Clock
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio

BOUNDS = StoreBounds(ttl_s=60, max_bytes=10_000)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock(1e9)


@pytest.fixture(params=["memory", "file", "redis"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer, clock: Clock
) -> AsyncIterator[AnswerStore]:
    path = tmp_path / "below" / "answers.db" if request.param == "file" else None
    is_redis = request.param == "redis"
    new = RedisAnswers.open(redis.url, BOUNDS, clock) if is_redis else SqliteAnswers.open(path, BOUNDS, clock)
    await new.clear()
    yield new
    await new.close()


def entry(key: str, *numbers: float, num_bytes: int = 10, group: str = "g") -> AnswerEntry:
    vector = direction(numbers) if numbers else None
    return AnswerEntry(key=key, answer=b"a" * num_bytes, group=group if numbers else None, vector=vector)


async def near(store: AnswerStore, *numbers: float, group: str = "g") -> list[str]:
    return [turn.key for turn in await store.near(group, direction_of(*numbers), at_least=0.9)]


async def test_get_returns_the_entry_that_was_put_last(store: AnswerStore) -> None:
    assert await store.get("k") is None
    await store.put(entry("k", num_bytes=3))
    size = await store.put(entry("k", num_bytes=5))
    assert await store.get("k") == b"aaaaa"
    assert size == await store.size() == StoreSize(1, entry("k", num_bytes=5).num_bytes)


async def test_turns_are_compared_within_their_group(store: AnswerStore) -> None:
    for new in (entry("x", 1, 0), entry("y", 0, 1), entry("xx", 1, 0.2), entry("other", 1, 0, group="h")):
        await store.put(new)
    assert await near(store, 1, 0) == ["x", "xx"]
    assert await near(store, 1, 0, group="h") == ["other"]
    assert await near(store, 1, 0, group="none") == []
    (best, _) = await store.near("g", direction_of(1, 0), at_least=0.9)
    assert best.similarity == pytest.approx(1, abs=1e-6)


async def test_forgotten_and_cleared_entries_are_not_found(store: AnswerStore) -> None:
    for new in (entry("x", 1, 0), entry("y", 1, 0.1)):
        await store.put(new)
    await store.forget("x", "g")
    await store.forget("absent", "g")
    assert (await near(store, 1, 0), await store.get("x")) == (["y"], None)
    assert (await store.size()).entries == 1
    await store.clear()
    assert (await near(store, 1, 0), await store.get("y"), await store.size()) == ([], None, StoreSize(0, 0))


async def test_the_least_recently_used_answer_is_evicted_first(store: AnswerStore, clock: Clock) -> None:
    for number in range(9):
        await store.put(entry(f"k{number}", 1, number, num_bytes=1000))
        clock.now_s += 1
        assert await store.get("k0") is not None
    assert await store.get("k1") is None
    assert "k1" not in await near(store, 1, 1)
    assert [await store.get(f"k{number}") is not None for number in (0, 7, 8)] == [True] * 3
    size = await store.size()
    assert size.num_bytes <= BOUNDS.max_bytes
    assert size.entries == 8


async def test_answers_expire_however_often_they_are_used() -> None:
    clock = Clock()
    store = SqliteAnswers.open(None, BOUNDS, clock)
    await store.put(entry("k", 1, 0))
    clock.now_s = 59.0
    assert await store.get("k") is not None
    clock.now_s = 60.0
    assert (await store.get("k"), await near(store, 1, 0)) == (None, [])
    await store.close()


async def test_expired_answers_leave_nothing_behind(redis: RedisServer) -> None:
    """Check expiry in Redis, which uses its own clock, and that a long-lived group drops the turns of expired
    answers."""
    clock = Clock(1000.0)
    store = RedisAnswers.open(redis.url, StoreBounds(ttl_s=60, max_bytes=10_000_000), clock)
    await store.clear()
    for number in range(50):
        await store.put(entry(f"old{number}", 1, number))
    assert await store.get("old7") is not None
    clock.now_s += 60.1
    with Redis.from_url(redis.url) as client:
        assert 0 < client.pttl("{ocs-answers}:2:answer:old7") <= 60_000
        size = await store.put(entry("new", 1, 0))
        assert client.hkeys("{ocs-answers}:2:turns:g") == [b"new"]
    assert size == StoreSize(1, entry("new", 1, 0).num_bytes)
    await store.clear()
    await store.close()


async def test_a_file_survives_a_restart(tmp_path: Path) -> None:
    for path in (tmp_path / "a.db", tmp_path / "a.db"):
        store = SqliteAnswers.open(path, BOUNDS)
        answer = await store.get("k")
        await store.put(entry("k"))
        await store.close()
    assert answer is not None


async def test_two_servers_share_a_file(tmp_path: Path) -> None:
    one, two = (SqliteAnswers.open(tmp_path / "a.db", BOUNDS) for _ in range(2))
    await asyncio.gather(*(store.put(entry(f"{i}")) for i, store in enumerate((one, two) * 10)))
    assert await one.get("19") == await two.get("0")
    assert await one.size() == await two.size() == StoreSize(20, 20 * entry("0").num_bytes + 10)
    await one.close()
    await two.close()


async def test_two_servers_share_redis_and_a_group_has_its_limit(redis: RedisServer) -> None:
    bounds = StoreBounds(ttl_s=60, max_bytes=100_000_000)
    one, two = RedisAnswers.open(redis.url, bounds), RedisAnswers.open(redis.url, bounds)
    await one.clear()
    for number in range(GROUP_LIMIT + 5):
        await (one, two)[number % 2].put(entry(f"{number}", 1, number))
    assert await one.get("7") == await two.get("7")
    with Redis.from_url(redis.url) as client:
        assert client.hlen("{ocs-answers}:2:turns:g") == GROUP_LIMIT
    await one.clear()
    await one.close()
    await two.close()
