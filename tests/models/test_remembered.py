"""Results are remembered as long as there is room."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from openai_cpu_server.models.grammars import LruCache
from tests.waiting import DEADLINE_S


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
