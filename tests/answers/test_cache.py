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
        self.kept = 0
        self.held = StoreSize(0, 0)

    def answer_kept(self) -> None:
        self.kept += 1

    def answers_held(self, entries: int, num_bytes: int) -> None:
        self.held = StoreSize(entries, num_bytes)


async def vector(text: str) -> bytes | None:
    return direction(DIRECTIONS[text]) if text in DIRECTIONS else None


COMPARING = TurnComparison("minilm", 0.95, vector)


def cache_of(store: AnswerStore, counts: Counts | None = None) -> AnswerCache:
    return AnswerCache(store, BOUNDS, counts or Counts())


def in_memory(counts: Counts | None = None) -> AnswerCache:
    store = SqliteAnswers.open(None, BOUNDS)
    return AnswerCache(store, BOUNDS, counts or Counts(), answer_s=DEADLINE_S)


async def kept(
    cache: AnswerCache, counts: Counts, one: AnswerKey, text: str, comparing: TurnComparison | None = None
) -> None:
    place = await cache.find(one, comparing)
    assert isinstance(place, AnswerPlace)
    cache.keep(one, place, answer(text))
    await eventually(lambda: counts.kept)


def told(found: object) -> str:
    assert isinstance(found, FoundAnswer)
    return "".join(event.text for event in found.events)


async def test_the_same_question_gets_the_same_answer() -> None:
    counts = Counts()
    cache = in_memory(counts)
    await kept(cache, counts, question(), "yes")
    found = await cache.find(question(), None)
    assert (told(found), isinstance(found, FoundAnswer) and found.similarity) == ("yes", None)
    assert isinstance(await cache.find(question(request(stop=("x",))), None), AnswerPlace)
    assert counts.held.entries == 1
    await cache.clear()
    assert isinstance(await cache.find(question(), None), AnswerPlace)
    assert counts.held == StoreSize(0, 0)
    await cache.close()


async def test_a_similar_turn_gets_the_answer_and_another_does_not() -> None:
    counts = Counts()
    cache = in_memory(counts)
    drawn = question(text="hi", is_repeatable=False)
    await kept(cache, counts, drawn, "well", COMPARING)
    similar = await cache.find(question(request(tokens=(7,)), text="hello", is_repeatable=False), COMPARING)
    assert told(similar) == "well"
    assert isinstance(similar, FoundAnswer)
    assert similar.similarity == pytest.approx(0.995, abs=1e-3)
    assert isinstance(await cache.find(question(text="bye", is_repeatable=False), COMPARING), AnswerPlace)
    assert await cache.find(question(text="cannot be embedded", is_repeatable=False), COMPARING) is None
    assert await cache.find(drawn, None) is None
    await cache.close()


async def test_a_corrupt_answer_is_a_miss_and_the_next_similar_one_is_told() -> None:
    store = SqliteAnswers.open(None, BOUNDS)
    counts = Counts()
    cache = cache_of(store, counts)
    first = question(text="hi", is_repeatable=False)
    place = await cache.find(first, COMPARING)
    assert isinstance(place, AnswerPlace)
    await store.put(AnswerEntry(key=place.key, answer=b"junk", group=place.group, vector=place.vector))
    assert isinstance(await cache.find(first, COMPARING), AnswerPlace)
    assert (await store.size()).entries == 0
    await kept(cache, counts, question(text="hello", is_repeatable=False), "good", COMPARING)
    await store.put(AnswerEntry(key=place.key, answer=b"junk", group=place.group, vector=place.vector))
    assert told(await cache.find(first, COMPARING)) == "good"
    await cache.close()


async def test_an_answer_that_would_push_out_many_is_not_kept() -> None:
    counts = Counts()
    cache = in_memory(counts)
    place = await cache.find(question(), None)
    assert isinstance(place, AnswerPlace)
    cache.keep(question(), place, answer("x" * 2000))
    await cache.clear()  # waits for what is being written
    assert counts.kept == 0
    await cache.close()


async def test_clearing_a_store_that_fails_says_so_and_asks_it_even_while_it_is_left_alone() -> None:
    store = Failing()
    cache = cache_of(store)
    assert isinstance(await cache.find(question(), None), AnswerPlace)
    asked = store.asked
    with pytest.raises(AnswersUnavailable):
        await cache.clear()
    assert store.asked > asked
    store.works = True
    await cache.clear()
    await cache.close()


class Failing:
    """A store that is away, or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.asked = 0
        self.hangs = hangs
        self.works = False

    async def _fail(self, *args: object, **options: object) -> None:
        self.asked += 1
        if self.hangs:
            await anyio.sleep_forever()
        if not self.works:
            raise StoreFailed("ConnectionError")

    get = near = put = forget = clear = size = _fail

    async def close(self) -> None: ...


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_failing_store_is_a_miss_and_is_left_alone(
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
        await cache.close()  # waits for what is being written
    assert store.asked == 1
    said = [record.getMessage() for record in caplog.records if "cache of" in record.getMessage()]
    why = "no answer in time" if hangs else "ConnectionError"
    assert said == [f"the cache of answers fails ({why}): all answers are computed until it is back"]
