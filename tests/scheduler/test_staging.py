"""Prompts that share nothing are computed beside the pool, where that is faster."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.request import Priority
from tests.scheduler.driver import Driver, TokenCost, request

SKIPPING_COSTS = 0.01
"""Milliseconds for each cell that a token has to skip."""


def crowded(
    staging: int = 512,
    *,
    decoding: int = 64,
    idle: int = 128,
    output: int = 60,
    priority: Priority = Priority.INTERACTIVE,
) -> Driver:
    """A driver in which eight sequences decode, with 400 cells in all."""
    driver = Driver(
        slots=10,
        kv_tokens=8192,
        staging=staging,
        decoding=decoding,
        idle=idle,
        cost=TokenCost(skipped_ms=SKIPPING_COSTS),
    )
    driver.submit(*(request(name, prompt=50, output=output, priority=priority) for name in "abcdefgh"))
    while not all(name in driver.outputs and driver.outputs[name] for name in "abcdefgh"):
        driver.step()
    driver.step()
    return driver


def test_a_prompt_is_read_beside_those_who_decode_and_they_have_every_other_step() -> None:
    driver = crowded()
    driver.submit(request("new", prompt=100, output=2))
    steps = [driver.step() for _ in range(4)]
    assert [list(step) for step in steps] == [["new"], list("abcdefgh"), ["new"], [*"abcdefgh", "new"]]
    assert [step["new"] for step in steps if len(step) == 1] == [83, 17]
    assert driver.staged[-4:] == [["new"], [], ["new"], []]


def test_both_steps_together_take_no_longer_than_one_may() -> None:
    driver = crowded(decoding=40, idle=200)
    driver.submit(request("new", prompt=200, output=1))
    others_ms = 8 * (1 + (8 * 64 - 52) * SKIPPING_COSTS)  # whole blocks are taken
    read = [step["new"] for step in (driver.step() for _ in range(6)) if list(step) == ["new"]]
    assert max(read) + others_ms == pytest.approx(3 * 40, abs=2)  # the budget where one waits


def test_a_prompt_alone_is_read_in_the_pool() -> None:
    driver = Driver(staging=512, cost=TokenCost(skipped_ms=SKIPPING_COSTS))
    driver.submit(request("one", prompt=100))
    driver.run()
    assert not any(driver.staged)


def test_where_nothing_must_be_skipped_prompts_and_decodes_share_steps() -> None:
    driver = Driver(staging=512)
    driver.submit(request("one", output=20))
    driver.step()
    driver.submit(request("two", prompt=20))
    assert driver.step() == {"one": 1, "two": 20}


def test_who_has_cells_in_the_pool_stays_there() -> None:
    """It shares the beginning of one who runs."""
    driver = crowded()
    tokens = request("a", prompt=50).tokens + request("kin", prompt=50).tokens
    driver.submit(request("kin", output=2, tokens=tokens))
    driver.run()
    assert all("kin" not in names for names in driver.staged)
    assert driver.cached["kin"] == 50


def test_what_does_not_fit_there_goes_on_in_the_pool() -> None:
    driver = crowded(staging=130)
    driver.submit(request("long", prompt=400, output=1))
    driver.run()
    assert sum(names == ["long"] for names in driver.staged) >= 1
    assert "long" in driver.finished


def test_cells_there_are_shared_with_the_next() -> None:
    """Its source is read beside the pool when the newcomer comes."""
    driver = crowded(idle=100)
    driver.submit(request("new", prompt=150, output=30))
    while not driver.staged[-1]:
        driver.step()
    driver.submit(request("again", output=3, tokens=request("new", prompt=150).tokens))
    driver.run()
    assert driver.cached["again"] == 149


def test_batch_prompts_wait_beside_the_pool_too() -> None:
    driver = Driver(slots=10, staging=512, decoding=64, idle=128, cost=TokenCost(skipped_ms=SKIPPING_COSTS))
    driver.submit(*(request(name, prompt=50, output=60, priority=Priority.BATCH) for name in "abcdefgh"))
    for _ in range(8):
        driver.step()
    driver.submit(request("new", prompt=100, output=2, priority=Priority.BATCH))
    driver.run()
    assert ["new"] in driver.staged


def test_batch_work_keeps_its_share_beside_prompts_without_end() -> None:
    """The prompts have answers of one token, so that no interactive sequence ever decodes."""
    driver = crowded(priority=Priority.BATCH, output=400)
    steps = []
    for number in range(120):
        driver.submit(request(f"i{number}", prompt=60, output=1))
        steps.append(driver.step())
    share = sum("a" in step for step in steps) / len(steps)
    assert 0.05 < share < 0.5
