"""Estimates for waiting requests and newcomers, and the journal of cached prefixes."""

from __future__ import annotations

from openai_cpu_server.contract.replica import BLOCK_TOKENS, Forecast, PrefixNews, block_hashes
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.scheduler.admission import OutputLengths
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal, SavedPrefixes
from openai_cpu_server.scheduler.sequence import ShortestFirstPolicy
from tests.scheduler.driver import Driver, request
from tests.scheduler.test_pictures import picture, question

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE


def call(route: str = "chat", client: str = "ann", most: int = 1000) -> GenerationRequest:
    return request("r", output=most, route=route, client=client)


def learned(*lengths: int, **fields: str) -> OutputLengths:
    outputs = OutputLengths()
    for length in lengths:
        outputs.learn(call(**fields), length)
    return outputs


def test_outputs_are_expected_to_reach_their_limit_or_the_length_of_others() -> None:
    assert OutputLengths().left(call(most=70), 20) == 50
    hundred, two_kinds, nothing = learned(*[100] * 4), learned(*[5] * 4, *[90] * 4), learned(0, 0, 0, 0)
    assert hundred.left(call(most=60), 10) == 50, "the request's limit bounds the estimate"
    assert two_kinds.left(call(), 10) == 80, "a longer output is compared with the long ones"
    assert two_kinds.left(call(), 95) == 905
    assert nothing.left(call(most=5), 5) == nothing.left(call(most=0)) == 0


def test_a_client_is_estimated_by_its_own_outputs_and_a_new_one_by_its_route() -> None:
    lengths = learned(10, 20, 30, 40, client="ann")
    for length in (110, 120, 130, 140):
        lengths.learn(call(client="bob"), length)
    assert lengths.left(call(client="ann")) == 25
    assert lengths.left(call(client="new")) == lengths.left(call(route="completions", client="new")) == 75


def test_clients_without_end_do_not_fill_the_memory() -> None:
    lengths = OutputLengths()
    for number in range(5000):
        lengths.learn(call(client=str(number)), 7)
    assert lengths.left(call(client="4999")) == 7
    assert len(lengths._by_kind) <= 1024


def test_shortest_first_uses_learned_lengths_and_not_the_limits_of_requests() -> None:
    driver = Driver(slots=1, policy=ShortestFirstPolicy())
    for number in range(4):
        driver.submit(request(f"s{number}", output=3, route="a"), request(f"l{number}", output=40, route="b"))
    driver.run()
    driver.step(request("hold", output=3))
    driver.submit(request("long", output=50, route="b"), request("short", output=400, route="a"))
    assert [entry.id for entry in driver.scheduler.eta_estimator.queue_places()] == ["short", "long"]


def test_the_estimate_uses_the_expected_lengths_of_outputs() -> None:
    driver = Driver(slots=1)
    driver.run(*(request(f"d{number}", output=5, priority=BATCH) for number in range(4)))
    driver.step(request("now", output=900, prompt=4))
    assert estimates_ms(driver, request("next", output=5))[0] < 20, "900 tokens would take longer"


def estimates_ms(driver: Driver, *waiting: GenerationRequest) -> list[float]:
    driver.submit(*waiting)
    return [entry.first_token_ms for entry in driver.scheduler.eta_estimator.queue_places()]


def first_token_ms(adapter: str | None, *running: str | None) -> float:
    """Forecast for a prompt of 200 tokens with this adapter, while the others write long outputs."""
    driver = Driver(slots=len(running) + 1)
    driver.submit(*(request(f"w{n}", output=900, adapter=key) for n, key in enumerate(running)))
    driver.steps(4 * len(running))
    return estimates_ms(driver, request("next", prompt=200, adapter=adapter))[0]


def test_a_request_that_takes_turns_with_other_adapters_waits_longer() -> None:
    alone, beside_own = first_token_ms("a"), first_token_ms("a", "a")
    one_other, two_others = first_token_ms("a", "b"), first_token_ms("a", "b", None)
    assert alone == beside_own, "requests with one adapter share steps"
    assert (one_other, two_others) == (2 * alone, 3 * alone)


def test_an_adapter_group_that_only_reads_takes_no_longer_than_its_prompts() -> None:
    waits = []
    for one_key, other_key in ((None, None), ("a", "b")):
        driver = Driver(slots=1)
        driver.step(request("hold", output=900))
        both = [request("a", prompt=200, adapter=one_key), request("b", prompt=100, adapter=other_key)]
        waits.append(estimates_ms(driver, *both))
    assert waits[0] < waits[1]


def test_the_estimate_counts_the_encoding_of_pictures() -> None:
    """A request without pictures waits for slices between steps only, and a saved picture costs nothing."""
    driver = Driver(slots=8, cache_blocks=100)
    driver.run(question("first", picture(300)))
    driver.step(question("runs", picture(300, 1), output=50), request("other", output=50))
    waiting = [question("sees", picture(300, 2)), request("reads"), question("again", picture(300))]
    sees_ms, reads_ms, again_ms = estimates_ms(driver, *waiting)
    assert sees_ms - again_ms >= 600
    assert again_ms >= reads_ms
    assert driver.scheduler.eta_estimator.forecast().wait_ms.interactive >= 64


def forecast(driver: Driver, *submitted: GenerationRequest) -> Forecast:
    driver.submit(*submitted)
    return driver.scheduler.eta_estimator.forecast()


def test_a_newcomer_waits_for_the_prompts_before_its_own_and_not_for_batch_work() -> None:
    driver = Driver(slots=8)
    idle = forecast(driver)
    assert (idle.wait_ms, idle.num_live) == ((0, 0), (0, 0))
    assert idle.token_ms > 0
    driver.step(request("job", prompt=500, output=5, priority=BATCH))
    busy = forecast(driver)
    assert busy.wait_ms[BATCH] > busy.wait_ms[INTERACTIVE]
    later = forecast(driver, request("person", prompt=400, output=5))
    assert later.wait_ms[INTERACTIVE] >= busy.wait_ms[INTERACTIVE] + 300 * busy.token_ms
    assert later.num_live == (1, 1)


def test_a_forecast_has_the_step_time_for_any_number_of_streams() -> None:
    driver = Driver(slots=8)
    idle = forecast(driver)
    assert idle.step_ms(0) == 0
    assert idle.step_ms(1) < idle.step_ms(5) < idle.step_ms(6) < idle.step_ms(64) < idle.step_ms(100)
    driver.submit(*(request(f"r{n}", prompt=200, output=5) for n in range(3)))
    driver.steps(20)
    assert forecast(driver).step_ms(3) >= idle.step_ms(3)


def test_the_wait_grows_with_the_length_of_the_queue() -> None:
    waits = []
    for number in (70, 140):
        driver = Driver(slots=2)
        driver.step(*(request(f"r{n}", prompt=20, output=5) for n in range(number)))
        waits.append(forecast(driver).wait_ms[INTERACTIVE])
    assert waits[1] > 1.8 * waits[0]


def test_a_forecast_has_the_completed_work_by_priority() -> None:
    driver = Driver(slots=2)
    driver.run(request("person", prompt=30, output=5))
    done = forecast(driver).work_ms
    assert done[INTERACTIVE] > 0 == done[BATCH]
    driver.run(request("job", prompt=30, output=5, priority=BATCH))
    later = forecast(driver).work_ms
    assert later[INTERACTIVE] == done[INTERACTIVE]
    assert later[BATCH] > 0


def test_blocks_of_a_prompt_have_the_same_hashes_everywhere_and_others_in_another_namespace() -> None:
    text = tuple(range(3 * BLOCK_TOKENS + 5))
    hashes = block_hashes(text, "ann")
    assert len(hashes) == len(set(hashes)) == 3
    assert block_hashes(text[: 2 * BLOCK_TOKENS], "ann") == hashes[:2]
    assert not set(hashes) & set(block_hashes(text, "bob"))
    assert not set(hashes) & set(block_hashes((7, *text[1:]), "ann")), "a hash covers all blocks before it"


def test_the_journal_lists_whole_blocks_that_were_saved_and_dropped() -> None:
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
