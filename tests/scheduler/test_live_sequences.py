"""Who lives, by what, and who is new."""

from __future__ import annotations

from openai_cpu_server.contract.replica import ByPriority
from openai_cpu_server.contract.request import Priority
from tests.scheduler.driver import Driver, request

BATCH = Priority.BATCH


def test_they_are_counted_by_priority_until_they_finish() -> None:
    driver = Driver(slots=2)
    lives = driver.scheduler.sequences
    assert (len(lives), lives.best_priority) == (0, None)
    driver.submit(request("b", output=9, priority=BATCH), request("i", output=2))
    assert (len(lives), lives.counts) == (2, ByPriority(1, 1))
    assert lives.best_priority is Priority.INTERACTIVE
    driver.run_until(lambda: "i" in driver.finished)
    assert lives.best_priority is BATCH
    assert lives.get("i") is None
    driver.cancel("b")
    assert (len(lives), lives.counts) == (0, ByPriority(0, 0))


def test_who_was_released_and_waits_is_told_apart_from_who_waits_for_the_first_time() -> None:
    driver = Driver(slots=4, kv_tokens=128)
    driver.step(request("b", prompt=60, output=60, priority=BATCH))
    driver.step(request("i", prompt=60, output=60), request("j", prompt=60, output=60))
    lives = driver.scheduler.sequences
    assert [sequence.request.id for sequence in lives.preempted] == ["b"]
    assert lives.num_waiting == 2


def test_adapters_are_used_until_the_last_sequence_ends() -> None:
    driver = Driver()
    driver.submit(request("a", adapter="one", output=3))
    assert driver.scheduler.sequences.uses_adapter("one")
    driver.run()
    assert not driver.scheduler.sequences.uses_adapter("one")


def test_newcomers_are_those_that_got_a_slot_at_once_and_had_no_step_yet() -> None:
    driver = Driver(slots=3)
    lives = driver.scheduler.sequences
    driver.step(request("a", adapter="one", output=20))
    assert lives.cohorts_of_newcomers == frozenset()
    driver.submit(request("b", adapter="two"), request("c", output=20, priority=BATCH), request("d"))
    assert lives.cohorts_of_newcomers == frozenset(), "nobody has a slot yet"
    driver.step()
    assert lives.cohorts_of_newcomers == frozenset(), "b had its step, and d had to wait for a slot"
