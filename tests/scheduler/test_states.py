"""Stories about memories with a state: checkpoints of sequences, and the states that stay in the cache."""

from __future__ import annotations

from itertools import pairwise

import pytest

from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import SavedBlock
from openai_cpu_server.scheduler.plan import Pass, equal_passes
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from tests.scheduler.driver import Driver, TokenCost, request
from tests.scheduler.test_reuse import prefixed

STATE = 100  # the fake's states have 100 bytes, its blocks one


def stateful(**more: object) -> Driver:
    return Driver(**{"stateful": True, "cache_bytes": 10_000, "kv_tokens": 8192, "idle": 256, **more})


def test_requests_that_arrive_together_compute_their_prefix_once() -> None:
    """Without a cache the first request shares the state of its checkpoint."""
    for cache_bytes, shared in ((10_000, 1000), (0, 300)):
        driver = stateful(slots=16, cache_bytes=cache_bytes)
        driver.run(*(prefixed(f"r{i}", shared, own=40) for i in range(16)))
        assert sorted(driver.cached.values()) == [0] + 15 * [shared]
        assert cache_bytes or not driver.backend.saved_states


def test_an_interactive_request_behind_hundreds_of_batch_jobs_comes_next() -> None:
    driver = stateful(slots=8, idle=256, decoding=64)
    driver.submit(*(prefixed(f"j{i}", 300, own=20, priority=Priority.BATCH) for i in range(200)))
    driver.steps(30)
    assert "p" in driver.step(request("p", prompt=40))
    driver.run()
    assert [name for name, cached in driver.cached.items() if cached == 0] == ["j0", "p"]


@pytest.mark.parametrize("order", [range(30), range(29, -1, -1)])
def test_checkpoints_for_other_requests_keep_their_distance_too(order: range) -> None:
    driver = stateful(slots=40, kv_tokens=2**15, idle=512)
    long = request("long", prompt=2500)
    driver.step(long)
    sequence = driver.scheduler.sequences.get("long")
    kin = [request(f"k{i}", tokens=(*long.tokens[: 700 + 10 * i], *range(2, 30))) for i in order]
    driver.step(*kin)
    assert any(700 <= checkpoint < 990 and checkpoint % 256 for checkpoint in sequence.checkpoints)
    assert all(later - checkpoint >= BLOCK_TOKENS for checkpoint, later in pairwise(sequence.checkpoints))
    driver.run()


def test_the_next_turn_of_a_conversation_begins_at_the_end_of_its_answer() -> None:
    driver = stateful()
    tokens = tuple(2 + i % 150 for i in range(200))
    for number in range(20):
        driver.run(request(f"t{number}", tokens=tokens, output=70))
        tokens = (*tokens, *driver.outputs[f"t{number}"], 5, 6, 7)
    assert list(driver.cached.values()) == [0, *(200 + 73 * i + 69 for i in range(19))]


A, LONG = request("a", prompt=200), request("a", prompt=1500)
THOUGHTS = prefixed("a", 300, own=100, output=80, boundaries=(300, 396))
CACHED: dict[str, tuple[list[GenerationRequest], list[int]]] = {
    "prompts that differ by their last token": ([A, request("b", tokens=(*A.tokens[:-1], 7))], [0, 199]),
    "thoughts that are left out later cost the answer only": (  # boundary before the answer
        [THOUGHTS, request("b", tokens=(*THOUGHTS.tokens[:396], *range(2, 90)))], [0, 396]),
    "the system prompt is found again after one request": (
        [prefixed("a", 300, own=100, boundaries=(300,)), prefixed("b", 300, own=90)], [0, 300]),
    "a request that branches off leaves a checkpoint for the next": (
        [prefixed(name, 200, own=50) for name in "abc"], [0, 0, 200]),
    "a long prompt has checkpoints": ([LONG, request("b", tokens=(*LONG.tokens[:1300], 3, 4))], [0, 1280]),
}  # fmt: skip


@pytest.mark.parametrize("name", CACHED)
def test_a_request_begins_with_the_state_of_another(name: str) -> None:
    requests, cached = CACHED[name]
    driver = stateful()
    for one in requests:
        driver.run(one)
    assert list(driver.cached.values()) == cached


def test_checkpoints_keep_their_distance_and_lie_before_the_end() -> None:
    driver = stateful()
    driver.run(request("a", prompt=210, boundaries=(1, 20, 70, 75, 100, 140, 190, 200)))
    driver.run()
    assert {len(tokens) for tokens in driver.backend.saved_states.values()} == {70, 140, 213}


def test_a_short_prompt_is_not_worth_a_state() -> None:
    driver = stateful()
    driver.run(request("a", prompt=12, output=4))
    driver.run()
    assert (driver.backend.saved_states, driver.backend.blocks) == ({}, {})


def test_preempted_batch_work_continues_from_its_saved_state() -> None:
    driver = stateful(kv_tokens=512, decoding=64)
    driver.submit(request("b", prompt=300, output=60, priority=Priority.BATCH))
    driver.steps(10)
    assert driver.backend.num_computed > 300
    driver.run(request("p", prompt=400))
    assert driver.scheduler.num_preemptions == 1
    assert driver.backend.num_computed < 300 + 60 + 404 + BLOCK_TOKENS


def test_an_interrupted_checkpoint_is_repeated() -> None:
    driver = stateful()
    driver.step(prefixed("a", 300, own=100, boundaries=(300,), priority=Priority.BATCH))
    driver.step(interrupt=True)
    driver.run()
    driver.run(prefixed("b", 300, own=90))
    assert driver.cached["b"] == 300


def test_the_state_that_saves_least_for_its_bytes_is_evicted_first() -> None:
    cache = SavedPrefixes(3 * STATE + 40, state_bytes=STATE)
    long, short = text(1, length=1000), text(2, length=80)
    for tokens in (short, long, text(3, length=500), text(4, length=700)):
        cache.insert(tokens, "")
    assert [cache.match(tokens, "", len(tokens)).num_tokens for tokens in (long, short)] == [1000, 0]
    cache.check()


def test_a_state_within_a_conversation_is_evicted_without_its_cells() -> None:
    cache = SavedPrefixes(2 * STATE + 20, state_bytes=STATE)
    tokens = text(1, length=640)
    cache.insert(tokens[:128], "")
    cache.insert(tokens, "")
    assert len(cache) == 10
    assert len(cache.insert(text(2, length=64), "").dropped) == 1
    assert [cache.match(tokens, "", most).num_tokens for most in (640, 639)] == [640, 0]
    cache.check()


def test_blocks_without_a_state_are_evicted_too_and_an_insertion_without_room_stores_nothing() -> None:
    cache = SavedPrefixes(STATE + 20, state_bytes=STATE)
    cache.insert(text(1, length=640), "")
    assert len(cache.insert(text(2, length=700), "").dropped) == 11
    assert (len(cache), cache.totals.cache_states) == (11, 1)
    small = SavedPrefixes(STATE + 5, state_bytes=STATE)
    assert small.insert(text(1, length=640), "") == small.insert((), "")
    assert len(small) == 0


def test_blocks_that_lead_to_no_state_are_not_adopted() -> None:
    cache = SavedPrefixes(10_000, state_bytes=STATE)
    first, second = text(1, length=BLOCK_TOKENS), text(2, length=BLOCK_TOKENS)
    blocks = [SavedBlock(0, None, "", first), SavedBlock(1, 0, "", second), SavedBlock(2, 0, "", (9,), 3)]
    assert cache.adopt(blocks) == (1,)
    assert cache.match((*first, 9, 9), "", 66).num_tokens == 65
    cache.check()
    assert SavedPrefixes(10_000).adopt(blocks) == (2, 3)


def text(seed: int, *, length: int) -> tuple[int, ...]:
    return tuple(2 + (seed * 37 + i) % 200 for i in range(length))


def test_a_step_has_one_pass_for_each_length() -> None:
    assert equal_passes([1, 1, 1]) == (Pass(3, 3),)
    assert equal_passes([1] * 8 + [256]) == (Pass(9, 9), Pass(255, 1))
    assert equal_passes([10, 4, 10]) == (Pass(12, 3), Pass(12, 2))
    assert equal_passes([]) == ()


def test_prompts_are_read_in_equal_parts() -> None:
    driver = stateful(cost=TokenCost(step_ms=20.0), idle=180, slots=8)
    assert list(driver.step(*(request(f"p{i}", prompt=300) for i in range(4))).values()) == [80, 80]


def test_passes_are_within_the_budget() -> None:
    """A step has one pass over the weights for a token of each request and one for the rest of the prompt."""
    driver = stateful(cost=TokenCost(step_ms=20.0), decoding=100, idle=400, slots=8)
    driver.submit(request("s", prompt=4, output=50))
    driver.steps(10)
    driver.submit(request("p", prompt=2000))
    driver.steps(4)
    assert all(ms <= 400 for ms in driver.predicted_ms)
    spans = driver.step()
    assert spans["s"] == 1
    assert 40 + spans["p"] + 1 <= driver.predicted_ms[-1] < 40 + spans["p"] + 5


def test_no_step_is_padded() -> None:
    driver = stateful(tiles=(16,))
    driver.run(*[request(f"r{i}") for i in range(7)])
    assert set(driver.paddings) == {0}


@pytest.mark.parametrize("priority", Priority)
def test_batch_steps_alone_may_be_interrupted(priority: Priority) -> None:
    driver = stateful()
    driver.step(request("a", prompt=100, priority=priority))
    assert driver.interruptible == [priority is Priority.BATCH]
