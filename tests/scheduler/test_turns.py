"""Prompts and those who decode take turns, where a step of prompts alone is much faster."""

from __future__ import annotations

from itertools import pairwise

from openai_cpu_server.contract.cost import CostCurve, TiledAttention
from openai_cpu_server.contract.request import Priority
from tests.scheduler.driver import Driver, TokenCost, alone, request

STREAMS = "abcd"


class AttentionCost(TokenCost):
    """A millisecond a token, and attention: ten times as cheap in tiles, if there are no others."""

    CURVE = CostCurve(
        step_ms=((1, 1.0),), attended_ms=0.05, skipped_ms=0.0, tiled=TiledAttention(rows=32, pair_ms=0.005)
    )

    def __init__(self, slow: float = 1.0) -> None:
        super().__init__(jump=(32, 0.0))
        self._slow = slow

    def predict_ms(self, num_tokens: int, attended: int, skipped: int, cells: int | None = None) -> float:
        return self._slow * (num_tokens + self.CURVE.attention_ms(num_tokens, attended, cells))


def streaming(priority: Priority = Priority.INTERACTIVE, slow: float = 1.0) -> Driver:
    """A driver in which four sequences decode, with 200 cells in all."""
    driver = Driver(decoding=100, idle=200, kv_tokens=4096, floor=0.0, cost=AttentionCost(slow))
    driver.submit(*(request(name, prompt=50, output=80, priority=priority) for name in STREAMS))
    while not all(driver.outputs.get(name) for name in STREAMS):
        driver.step()
    driver.step()
    return driver


def who(step: dict[str, int]) -> str:
    return "".join(sorted(step))


def test_deep_in_a_long_prompt_it_and_the_streams_take_turns() -> None:
    driver = streaming()
    long = request("L", prompt=900, output=2)
    driver.submit(long)
    steps = []
    while not driver.outputs["L"]:
        steps.append(who(driver.step()))
    assert steps.count("L") >= 8
    assert set(steps) <= {"L", STREAMS, "Labcd"}
    assert all(after != "L" for step, after in pairwise(steps) if step == "L")
    driver.run()
    assert driver.outputs["L"] == alone(long)


def test_a_step_of_the_prompt_alone_takes_no_longer_than_batch_steps_may() -> None:
    driver = streaming()
    driver.submit(request("L", prompt=900, output=1))
    done = 0
    while not driver.outputs["L"]:
        step = driver.step()
        if who(step) == "L":
            attended = sum(range(done, done + step["L"]))
            assert driver.cost.predict_ms(step["L"], attended, 0, done + step["L"]) <= 200
        done += step.get("L", 0)
    assert done == 900


def test_on_a_slow_machine_it_takes_twice_as_long_for_the_least_that_is_much_faster() -> None:
    """At the end 32 tokens take 318 ms alone, in 200 ms there is time for 2 beside the streams."""
    driver = streaming(slow=2.0)
    long = request("L", prompt=900, output=2)
    driver.submit(long)
    alone_ms = []
    done = 0
    while not driver.outputs["L"]:
        step = driver.step()
        if who(step) == "L" and step["L"] >= 32:
            attended = sum(range(done, done + step["L"]))
            alone_ms.append(driver.cost.predict_ms(step["L"], attended, 0, done + step["L"]))
            assert alone_ms[-1] <= 200 or step["L"] == 32
        done += step.get("L", 0)
    assert 200 < max(alone_ms) <= 400
    driver.run()
    assert driver.outputs["L"] == alone(long)


class StartingCost(TokenCost):
    """A step takes 180 ms and a millisecond a token; nothing attends in tiles."""

    def predict_ms(self, num_tokens: int, attended: int, skipped: int, cells: int | None = None) -> float:
        return 180.0 + num_tokens


def test_only_tiles_are_worth_more_than_a_batch_step_may_take() -> None:
    """A step of prompts alone could read ten times as much in twice the time, but without tiles."""
    driver = Driver(decoding=190, idle=200, kv_tokens=4096, cost=StartingCost())
    driver.submit(*(request(name, prompt=50, output=80) for name in STREAMS))
    while not all(driver.outputs.get(name) for name in STREAMS):
        driver.step()
    driver.submit(request("L", prompt=900, output=1))
    while not driver.outputs["L"]:
        assert driver.step().get("L", 0) <= 20


def test_whoever_comes_meanwhile_is_not_behind_those_whose_turn_it_is() -> None:
    """A prompt of a better class than the sequences that decode."""
    driver = streaming(Priority.BATCH)
    driver.submit(request("L", prompt=900, output=1, priority=Priority.BATCH))
    while who(driver.step()) != "L":
        pass
    driver.submit(request("i", prompt=20, output=2))
    assert "i" in driver.step()


def test_without_attention_that_pays_they_share_steps() -> None:
    driver = Driver(decoding=100, idle=200, kv_tokens=4096)
    driver.submit(*(request(name, prompt=50, output=80) for name in STREAMS))
    driver.step()
    driver.submit(request("L", prompt=900, output=1))
    assert {who(driver.step()) for _ in range(4)} == {"Labcd"}
