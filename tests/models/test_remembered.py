"""Results are remembered as long as there is room."""

from __future__ import annotations

from openai_cpu_server.models.remembered import Remembered


def test_the_least_recently_used_goes_when_bytes_run_out() -> None:
    texts: Remembered[str] = Remembered(10_000)
    for name in "abc":
        texts.put(name, name, 2_500)
    assert texts.get("a") == "a"
    texts.put("d", "d", 2_500)
    assert [texts.get(name) for name in "abcd"] == ["a", None, "c", "d"]


def test_what_is_too_large_alone_pushes_nothing_out() -> None:
    texts: Remembered[str] = Remembered(10_000)
    texts.put("a", "a", 1)
    texts.put("huge", "huge", 20_000)
    assert [texts.get("a"), texts.get("huge")] == ["a", None]


def test_what_is_put_again_counts_once() -> None:
    texts: Remembered[str] = Remembered(10_000)
    for _ in range(100):
        texts.put("a", "a", 4_000)
    texts.put("b", "b", 4_000)
    assert (texts.get("a"), texts.get("b"), len(texts)) == ("a", "b", 2)
