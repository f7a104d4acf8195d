"""The cache over a real store, and over stores that fail."""

from __future__ import annotations

import logging

import anyio
import pytest

from openai_cpu_server.answers.cache import AnswerCache, AnswerPlace, FoundAnswer, TurnComparison
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import (
    AnswerEntry,
    AnswerKey,
    AnswerStore,
    StoreBounds,
    StoreFailed,
    StoreSize,
    direction,
)
from openai_cpu_server.errors import AnswersUnavailable
from tests.answers.questions import answer, question, request
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

BOUNDS = StoreBounds(60, 100_000)
DIRECTIONS = {"hi": (1, 0), "hello": (1, 0.1), "bye": (0, 1)}


class Counts:
    def __init__(self) -> None:
        self.num_stored = 0
        self.size = StoreSize(0, 0)

    def answer_stored(self) -> None:
        self.num_stored += 1

    def answers_held(self, entries: int, num_bytes: int) -> None:
        self.size = StoreSize(entries, num_bytes)


async def vector(text: str) -> bytes | None:
    return direction(DIRECTIONS[text]) if text in DIRECTIONS else None


COMPARING = TurnComparison("minilm", 0.95, vector)


def cache_of(store: AnswerStore, counts: Counts | None = None) -> AnswerCache:
    return AnswerCache(store, BOUNDS, counts or Counts())


def in_memory(counts: Counts | None = None) -> AnswerCache:
    store = SqliteAnswers.open(None, BOUNDS)
    return AnswerCache(store, BOUNDS, counts or Counts(), answer_s=DEADLINE_S)


async def store_answer(
    cache: AnswerCache, counts: Counts, key: AnswerKey, text: str, comparison: TurnComparison | None = None
) -> None:
    place = await cache.find(key, comparison)
    assert isinstance(place, AnswerPlace)
    cache.keep(key, place, answer(text))
    await eventually(lambda: counts.num_stored)


def text_of(found: object) -> str:
    assert isinstance(found, FoundAnswer)
    return "".join(event.text for event in found.events)


async def test_the_same_question_gets_the_same_answer() -> None:
    counts = Counts()
    cache = in_memory(counts)
    await store_answer(cache, counts, question(), "yes")
    found = await cache.find(question(), None)
    assert (text_of(found), isinstance(found, FoundAnswer) and found.similarity) == ("yes", None)
    assert isinstance(await cache.find(question(request(stop=("x",))), None), AnswerPlace)
    assert counts.size.entries == 1
    await cache.clear()
    assert isinstance(await cache.find(question(), None), AnswerPlace)
    assert counts.size == StoreSize(0, 0)
    await cache.close()


async def test_only_a_similar_turn_gets_the_answer() -> None:
    counts = Counts()
    cache = in_memory(counts)
    drawn = question(text="hi", is_repeatable=False)
    await store_answer(cache, counts, drawn, "well", COMPARING)
    similar = await cache.find(question(request(tokens=(7,)), text="hello", is_repeatable=False), COMPARING)
    assert text_of(similar) == "well"
    assert isinstance(similar, FoundAnswer)
    assert similar.similarity == pytest.approx(0.995, abs=1e-3)
    assert isinstance(await cache.find(question(text="bye", is_repeatable=False), COMPARING), AnswerPlace)
    assert await cache.find(question(text="cannot be embedded", is_repeatable=False), COMPARING) is None
    assert await cache.find(drawn, None) is None
    await cache.close()


async def test_a_corrupt_answer_is_a_miss_and_the_next_similar_one_is_used() -> None:
    store = SqliteAnswers.open(None, BOUNDS)
    counts = Counts()
    cache = cache_of(store, counts)
    first = question(text="hi", is_repeatable=False)
    place = await cache.find(first, COMPARING)
    assert isinstance(place, AnswerPlace)
    await store.put(AnswerEntry(key=place.key, answer=b"junk", group=place.group, vector=place.vector))
    assert isinstance(await cache.find(first, COMPARING), AnswerPlace)
    assert (await store.size()).entries == 0
    await store_answer(cache, counts, question(text="hello", is_repeatable=False), "good", COMPARING)
    await store.put(AnswerEntry(key=place.key, answer=b"junk", group=place.group, vector=place.vector))
    assert text_of(await cache.find(first, COMPARING)) == "good"
    await cache.close()


async def test_an_answer_that_would_evict_many_is_not_stored() -> None:
    counts = Counts()
    cache = in_memory(counts)
    place = await cache.find(question(), None)
    assert isinstance(place, AnswerPlace)
    cache.keep(question(), place, answer("x" * 2000))
    await cache.clear()  # waits for running writes
    assert counts.num_stored == 0
    await cache.close()


async def test_clearing_reports_a_failing_store_and_queries_it_during_its_pause() -> None:
    store = Failing()
    cache = cache_of(store)
    assert isinstance(await cache.find(question(), None), AnswerPlace)
    num_queries = store.num_queries
    with pytest.raises(AnswersUnavailable):
        await cache.clear()
    assert store.num_queries > num_queries
    store.works = True
    await cache.clear()
    await cache.close()


class Failing:
    """A store that fails or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.num_queries = 0
        self.hangs = hangs
        self.works = False

    async def _fail(self, *args: object, **options: object) -> None:
        self.num_queries += 1
        if self.hangs:
            await anyio.sleep_forever()
        if not self.works:
            raise StoreFailed("ConnectionError")

    get = near = put = forget = clear = size = _fail

    async def close(self) -> None: ...


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_failing_store_is_a_miss_and_is_not_queried_for_a_while(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(hangs=hangs)
    cache = cache_of(store)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            place = await cache.find(question(text="hi"), COMPARING)
            assert isinstance(place, AnswerPlace)
            cache.keep(question(text="hi"), place, answer("x"))
        assert await cache.measure() is None
        await cache.close()  # waits for running writes
    assert store.num_queries == 1
    messages = [record.getMessage() for record in caplog.records if "cache of" in record.getMessage()]
    reason = "no answer in time" if hangs else "ConnectionError"
    assert messages == [f"the cache of answers fails ({reason}): all answers are computed until it is back"]
