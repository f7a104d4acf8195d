"""What newcomers may expect, and what is told of the prompts that are held."""

from __future__ import annotations

from openai_cpu_server.contract.replica import BLOCK_TOKENS, PrefixNews, block_hashes
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.prefix_tree import PrefixJournal
from tests.scheduler.driver import Driver, request

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE


def test_nobody_waits_for_an_idle_engine() -> None:
    forecast = Driver(slots=2).scheduler.expectations.forecast()
    assert (forecast.wait_ms, forecast.num_live) == ((0, 0), (0, 0))
    assert forecast.token_ms > 0


def test_a_newcomer_waits_for_the_prompts_before_its_own_and_not_for_batch_work() -> None:
    driver = Driver(slots=8)
    driver.step(request("job", prompt=500, output=5, priority=BATCH))
    told = driver.scheduler.expectations.forecast()
    assert told.wait_ms[BATCH] > told.wait_ms[INTERACTIVE]
    driver.submit(request("person", prompt=400, output=5))
    later = driver.scheduler.expectations.forecast()
    assert later.wait_ms[INTERACTIVE] >= told.wait_ms[INTERACTIVE] + 300 * told.token_ms
    assert later.num_live == (1, 1)


def test_what_a_step_takes_is_told_for_any_number_of_streams() -> None:
    driver = Driver(slots=8)
    idle = driver.scheduler.expectations.forecast()
    assert idle.step_ms(0) == 0
    assert idle.step_ms(1) < idle.step_ms(5) < idle.step_ms(6) < idle.step_ms(64) < idle.step_ms(100)
    driver.submit(*(request(f"r{n}", prompt=200, output=5) for n in range(3)))
    driver.steps(20)
    assert driver.scheduler.expectations.forecast().step_ms(3) >= idle.step_ms(3)


def test_who_waits_behind_thousands_waits_longer_than_behind_some() -> None:
    waits = []
    for number in (70, 140):
        driver = Driver(slots=2)
        driver.step(*(request(f"r{n}", prompt=20, output=5) for n in range(number)))
        waits.append(driver.scheduler.expectations.forecast().wait_ms[INTERACTIVE])
    assert waits[1] > 1.8 * waits[0]


def test_the_work_that_was_done_is_told_by_priority() -> None:
    driver = Driver(slots=2)
    driver.run(request("person", prompt=30, output=5))
    done = driver.scheduler.expectations.forecast().work_ms
    assert done[INTERACTIVE] > 0
    assert done[BATCH] == 0
    driver.run(request("job", prompt=30, output=5, priority=BATCH))
    assert driver.scheduler.expectations.forecast().work_ms[INTERACTIVE] == done[INTERACTIVE]
    assert driver.scheduler.expectations.forecast().work_ms[BATCH] > 0


def test_a_prompt_has_the_same_names_everywhere_and_others_with_other_keys() -> None:
    text = tuple(range(3 * BLOCK_TOKENS + 5))
    names = block_hashes(text, "ann")
    assert len(names) == len(set(names)) == 3
    assert block_hashes(text[: 2 * BLOCK_TOKENS], "ann") == names[:2]
    assert not set(names) & set(block_hashes(text, "bob"))
    other = (7, *text[1:])
    assert not set(names) & set(block_hashes(other, "ann")), "a block is named after all before it"


def test_the_journal_tells_of_whole_blocks_what_came_and_went() -> None:
    journal = PrefixJournal()
    cache = SavedPrefixes(2, journal=journal)
    first, second = tuple(range(BLOCK_TOKENS)), tuple(range(7, 7 + 2 * BLOCK_TOKENS))
    cache.insert((*first, 1, 2), "ann")
    assert journal.take() == PrefixNews(saved=block_hashes(first, "ann"))
    assert journal.take() is None
    cache.insert(second, "")
    assert journal.take() == PrefixNews(saved=block_hashes(second, ""), dropped=block_hashes(first, "ann"))
    cache.clear()
    assert journal.take() == PrefixNews(dropped=tuple(reversed(block_hashes(second, "")))) or not len(cache)
