"""Stories about computing a shared prompt once: running sequences, the prefix cache, and waiting for both."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.request import GenerationRequest, Priority
from tests.scheduler.driver import Driver, request

BATCH = Priority.BATCH


def prefixed(name: str, shared: int, own: int = 5, output: int = 4, **more: object) -> GenerationRequest:
    start = tuple(2 + i % 200 for i in range(shared))
    end = tuple(2 + (sum(name.encode()) + 7 * i) % 200 for i in range(own))
    return request(name, output=output, tokens=start + end, **more)


LONG = prefixed("long", 100, own=200)
ABC = [prefixed(name, 128) for name in "abc"]
IN_NAMESPACES = [
    prefixed(name, 128, cache_namespace=space) for name, space in (("a", ""), ("b", "x"), ("c", "y"))
]
CACHED: dict[str, tuple[dict[str, int], list[GenerationRequest], dict[str, int]]] = {
    "a finished prompt is restored to the token, and one is computed at least": (
        {}, [*(prefixed(name, 150) for name in "ab"), prefixed("c", 150, own=0)],
        {"a": 0, "b": 150, "c": 149}),
    "namespaces share nothing": ({}, IN_NAMESPACES, {"a": 0, "b": 0, "c": 0}),
    "no request shares where reuse is off": ({"reuses": False}, ABC, {"a": 0, "b": 0, "c": 0}),
    "shared cells and saved blocks are combined": (
        {"kv_tokens": 2048, "idle": 512},
        [LONG, prefixed("short", 100, own=3, output=40), request("again", tokens=(*LONG.tokens, 9, 9))],
        {"long": 0, "short": 100, "again": 300}),
    "a scored prompt is computed whole": (
        {"rows": 256}, [ABC[0], prefixed("b", 128, prompt_logprobs=True)], {"a": 0, "b": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_tokens_that_were_computed_before(name: str) -> None:
    """The last but one request is still running when the last one arrives."""
    options, (*first, running, last), cached = CACHED[name]
    driver = Driver(**{"cache_blocks": 40, "idle": 256, **options})
    for one in first:
        driver.run(one)
    driver.step(running)
    driver.run(last)
    assert driver.cached == cached


def test_the_next_turn_of_a_conversation_reuses_the_answer_too() -> None:
    driver = Driver(cache_blocks=20)
    first = prefixed("a", 60, own=0, output=80)
    driver.run(first)
    driver.run(request("b", tokens=(*first.tokens, *driver.outputs["a"], 5, 6, 7)))
    assert driver.cached["b"] == 60 + 79, "the answer's last token was drawn, but never computed"


def test_a_request_waits_only_for_a_long_shared_prefix() -> None:
    step = Driver(idle=64).step(prefixed("a", 300), prefixed("b", 300), request("other", prompt=20))
    assert step.keys() == {"a", "other"}
    assert Driver(idle=64).step(prefixed("a", 30, own=200), prefixed("b", 30, own=5)).keys() == {"a", "b"}


def test_an_interactive_request_does_not_wait_for_a_prefix_of_batch_work() -> None:
    driver = Driver(idle=64)
    driver.step(prefixed("b", 300, priority=BATCH))
    assert "i" in driver.step(prefixed("i", 300))


def test_choices_of_one_prompt_fork_after_its_prefill() -> None:
    driver = Driver(idle=256)
    choices = [request(f"a/{i}", tokens=tuple(range(2, 102)), output=6) for i in range(4)]
    assert driver.step(*choices) == {"a/0": 100}
    assert driver.step() == {f"a/{i}": 1 for i in range(4)}
    driver.run()
    assert [driver.cached[f"a/{i}"] for i in range(4)] == [0, 99, 99, 99]


def test_a_preempted_sequence_is_restored_from_the_cache() -> None:
    driver = Driver(slots=1, cache_blocks=20, idle=256)
    driver.step(request("b", prompt=200, output=30, priority=BATCH))
    driver.step()
    driver.run(request("i"))
    assert driver.backend.num_computed == 200 + 29 + 4 + 3, "no token was computed twice"
    assert driver.cached["b"] == 0


def test_clearing_the_cache_frees_its_blocks_but_the_pinned() -> None:
    driver = Driver(cache_blocks=20, idle=256)
    driver.run(request("pin", prompt=64, output=0, tokens=(7,) * 64, pin=True), prefixed("a", 128))
    driver.scheduler.clear_cache()
    driver.run()
    assert len(driver.backend.blocks) == 1
    driver.run(request("b", tokens=(7,) * 64 + (8, 9)))
    assert driver.cached["b"] == 64
