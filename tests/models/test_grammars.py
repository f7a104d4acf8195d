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


def grammars(checked: list[str]) -> ModelGrammars:
    return ModelGrammars(grammar_maker(checked.append))


def schema(number: int, description: str = "") -> dict[str, object]:
    return {"type": "object", "properties": {f"p{number}": {"type": "null"}}, "description": description}


def test_the_same_schema_is_compiled_once_and_a_stricter_one_anew() -> None:
    checked: list[str] = []
    known = grammars(checked)
    for _ in range(3):
        known.of_schema(schema(1), "f")
    known.of_schema(schema(1), "f", strict=False)
    known.of_schema(schema(2), "f")
    assert len(checked) == 3


def test_a_refusal_is_remembered_and_names_the_field_that_asks() -> None:
    checked: list[str] = []

    def refuse(gbnf: str) -> None:
        checked.append(gbnf)
        raise InvalidRequest("It is too large.", code="too_large")

    known = ModelGrammars(grammar_maker(refuse))
    refusals = []
    for param in ("a", "b"):
        with pytest.raises(InvalidRequest) as raised:
            known.of_schema(schema(1), param)
        refusals.append((str(raised.value), raised.value.code, raised.value.param))
    assert refusals == [("It is too large.", "too_large", "a"), ("It is too large.", "too_large", "b")]
    assert len(checked) == 1


def test_a_keyword_that_is_refused_again_is_named_again() -> None:
    known = grammars([])
    for _ in range(2):
        with pytest.raises(InvalidRequest) as raised:
            known.of_schema({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "f")
        assert raised.value.param == "f.properties.a"


def test_large_schemas_are_not_held() -> None:
    """Each of these has a megabyte of words that its grammar does not need."""
    known = grammars([])
    known.of_schema(schema(0), "f")
    tracemalloc.start()
    for number in range(40):
        known.of_schema(schema(number, "x" * 1_000_000), "f")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 20_000_000


def test_grammars_are_forgotten_when_their_bytes_run_out() -> None:
    checked: list[str] = []
    known = ModelGrammars(grammar_maker(checked.append), remembered_bytes=20_000)
    for number in range(40):
        known.of_schema(schema(number), "f")
        known.of_schema(schema(0), "f")
    assert len(checked) == 40
    known.of_schema(schema(1), "f")
    assert len(checked) == 41


@pytest.fixture
def texts() -> LruCache[str]:
    return LruCache(10_000)


def test_the_least_recently_used_goes_when_bytes_run_out(texts: LruCache[str]) -> None:
    for name in "abc":
        texts.put(name, name, 2_500)
    assert texts.get("a") == "a"
    texts.put("d", "d", 2_500)
    assert [texts.get(name) for name in "abcd"] == ["a", None, "c", "d"]


def test_what_is_too_large_alone_pushes_nothing_out(texts: LruCache[str]) -> None:
    texts.put("a", "a", 1)
    texts.put("huge", "huge", 20_000)
    assert [texts.get("a"), texts.get("huge")] == ["a", None]


def test_what_is_put_again_counts_once(texts: LruCache[str]) -> None:
    for _ in range(100):
        texts.put("a", "a", 4_000)
    texts.put("b", "b", 4_000)
    assert (texts.get("a"), texts.get("b"), len(texts)) == ("a", "b", 2)


def test_what_several_want_at_once_is_made_once(texts: LruCache[str]) -> None:
    others, goes_on = threading.Barrier(4), threading.Event()
    made: list[str] = []

    def make() -> str:
        goes_on.wait(DEADLINE_S)
        made.append("a")
        return "a"

    def get() -> str:
        others.wait(DEADLINE_S)
        return texts.get_or_make("a", make, len)

    with ThreadPoolExecutor(3) as pool:
        wanted = [pool.submit(get) for _ in range(3)]
        others.wait(DEADLINE_S)
        goes_on.set()
        assert [each.result(DEADLINE_S) for each in wanted] == ["a", "a", "a"]
    assert made == ["a"]


def test_a_failure_is_not_remembered(texts: LruCache[str]) -> None:

    def fail() -> str:
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            texts.get_or_make("a", fail, len)
    assert texts.get_or_make("a", lambda: "a", len) == "a"
