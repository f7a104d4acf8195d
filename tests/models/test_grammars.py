"""Grammars are compiled once, and take a bounded amount of memory however large they are."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.grammars import LruCache, ModelGrammars
from openai_cpu_server.structured.compiler import grammar_maker
from tests.waiting import DEADLINE_S


def schema(number: int, description: str = "") -> dict[str, object]:
    return {"type": "object", "properties": {f"p{number}": {"type": "null"}}, "description": description}


def test_a_schema_is_compiled_once_for_each_strictness() -> None:
    checked: list[str] = []
    grammars = ModelGrammars(grammar_maker(checked.append))
    for _ in range(3):
        grammars.of_schema(schema(1), "f")
    grammars.of_schema(schema(1), "f", strict=False)
    grammars.of_schema(schema(2), "f")
    assert len(checked) == 3


def test_a_refusal_is_cached_and_names_the_field_of_each_request() -> None:
    checked: list[str] = []

    def refuse(gbnf: str) -> None:
        checked.append(gbnf)
        raise InvalidRequest("It is too large.", code="too_large")

    grammars = ModelGrammars(grammar_maker(refuse))
    refusals = []
    for param in ("a", "b"):
        with pytest.raises(InvalidRequest) as raised:
            grammars.of_schema(schema(1), param)
        refusals.append((str(raised.value), raised.value.code, raised.value.param))
    assert refusals == [("It is too large.", "too_large", "a"), ("It is too large.", "too_large", "b")]
    assert len(checked) == 1


def test_a_cached_refusal_names_the_keyword() -> None:
    grammars = ModelGrammars(grammar_maker(lambda gbnf: None))
    for _ in range(2):
        with pytest.raises(InvalidRequest) as raised:
            grammars.of_schema({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "f")
        assert raised.value.param == "f.properties.a"


def test_large_schemas_do_not_stay_in_memory() -> None:
    """Schemas have a megabyte of text that their grammars do not need."""
    grammars = ModelGrammars(grammar_maker(lambda gbnf: None))
    grammars.of_schema(schema(0), "f")
    tracemalloc.start()
    for number in range(40):
        grammars.of_schema(schema(number, "x" * 1_000_000), "f")
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 20_000_000


def test_grammars_are_evicted_when_the_cache_is_full() -> None:
    checked: list[str] = []
    grammars = ModelGrammars(grammar_maker(checked.append), remembered_bytes=20_000)
    for number in range(40):
        grammars.of_schema(schema(number), "f")
        grammars.of_schema(schema(0), "f")
    assert len(checked) == 40
    grammars.of_schema(schema(1), "f")
    assert len(checked) == 41


@pytest.fixture
def texts() -> LruCache[str]:
    return LruCache(10_000)


def test_the_least_recently_used_entry_is_evicted_when_the_cache_is_full(texts: LruCache[str]) -> None:
    for name in "abc":
        texts.put(name, name, 2_500)
    assert texts.get("a") == "a"
    texts.put("d", "d", 2_500)
    assert [texts.get(name) for name in "abcd"] == ["a", None, "c", "d"]


def test_an_entry_that_is_too_large_alone_evicts_nothing(texts: LruCache[str]) -> None:
    texts.put("a", "a", 1)
    texts.put("huge", "huge", 20_000)
    assert [texts.get("a"), texts.get("huge")] == ["a", None]


def test_an_entry_that_is_put_again_counts_once(texts: LruCache[str]) -> None:
    for _ in range(100):
        texts.put("a", "a", 4_000)
    texts.put("b", "b", 4_000)
    assert (texts.get("a"), texts.get("b"), len(texts)) == ("a", "b", 2)


def test_an_entry_is_made_once_for_concurrent_requests(texts: LruCache[str]) -> None:
    all_started, may_make = threading.Barrier(4), threading.Event()
    made: list[str] = []

    def make() -> str:
        may_make.wait(DEADLINE_S)
        made.append("a")
        return "a"

    def get() -> str:
        all_started.wait(DEADLINE_S)
        return texts.get_or_make("a", make, len)

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(get) for _ in range(3)]
        all_started.wait(DEADLINE_S)
        may_make.set()
        assert [future.result(DEADLINE_S) for future in futures] == ["a", "a", "a"]
    assert made == ["a"]


def test_a_failure_is_not_cached(texts: LruCache[str]) -> None:
    def fail() -> str:
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            texts.get_or_make("a", fail, len)
    assert texts.get_or_make("a", lambda: "a", len) == "a"
