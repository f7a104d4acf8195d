"""What those who wait may expect: outputs as long as those of the same kind were."""

from __future__ import annotations

from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.scheduler.live_sequences import OutputLengths
from openai_cpu_server.scheduler.sequence import ShortestFirstPolicy
from tests.scheduler.driver import Driver, request
from tests.scheduler.test_pictures import picture, seeing


def one(route: str = "chat", client: str = "ann", most: int = 1000) -> GenerationRequest:
    return request("r", output=most, route=route, client=client)


def test_nothing_known_is_as_long_as_it_may_be() -> None:
    assert OutputLengths().left(one(most=70), 20) == 50


def test_a_client_is_known_by_its_own_outputs_and_a_new_one_by_its_route() -> None:
    lengths = OutputLengths()
    for length in (10, 20, 30, 40):
        lengths.learn(one(client="ann"), length)
    for length in (110, 120, 130, 140):
        lengths.learn(one(client="bob"), length)
    assert lengths.left(one(client="ann")) == 25
    assert lengths.left(one(client="new")) == 75
    assert lengths.left(one(route="completions", client="new")) == 75


def test_what_may_not_be_longer_is_not_expected_to_be() -> None:
    lengths = OutputLengths()
    for _ in range(4):
        lengths.learn(one(), 100)
    assert lengths.left(one(most=60), 10) == 50


def test_who_has_outlived_the_short_ones_is_compared_with_the_long() -> None:
    lengths = OutputLengths()
    for length in (5, 5, 5, 5, 90, 90, 90, 90):
        lengths.learn(one(), length)
    assert lengths.left(one(), 10) == 80
    assert lengths.left(one(), 95) == 905


def test_an_output_that_goes_on_has_one_token_left_at_least() -> None:
    lengths = OutputLengths()
    for _ in range(4):
        lengths.learn(one(), 0)
    assert lengths.left(one(most=5), 5) == 0
    assert lengths.left(one(most=0)) == 0


def test_clients_without_end_do_not_fill_the_memory() -> None:
    lengths = OutputLengths()
    for number in range(5000):
        lengths.learn(one(client=str(number)), 7)
    assert lengths.left(one(client="4999")) == 7
    assert len(lengths._known) <= 1024


def test_shortest_first_goes_by_what_was_learned_not_by_what_is_asked_for() -> None:
    driver = Driver(slots=1, policy=ShortestFirstPolicy())
    for number in range(4):
        short = request(f"s{number}", output=3, route="a")
        long = request(f"l{number}", output=40, route="b")
        driver.submit(short, long)
    driver.run()
    driver.step(request("hold", output=3))
    driver.submit(request("long", output=50, route="b"), request("short", output=400, route="a"))
    waiting = [entry.id for entry in driver.scheduler.expectations.outlook()]
    assert waiting == ["short", "long"]


def test_the_outlook_counts_what_outputs_really_become() -> None:
    driver = Driver(slots=1)
    driver.run(*(request(f"d{number}", output=5, priority=Priority.BATCH) for number in range(4)))
    driver.step(request("now", output=900, prompt=4))
    driver.submit(request("next", output=5))
    (next_one,) = driver.scheduler.expectations.outlook()
    assert next_one.first_token_ms < 20, "not after 900 tokens"


def first_token_ms(adapter: str | None, *running: str | None) -> float:
    """What is foretold to a prompt of 200 tokens with this adapter, while a long output is written with each
    of the others."""
    driver = Driver(slots=len(running) + 1)
    driver.submit(*(request(f"w{n}", output=900, adapter=key) for n, key in enumerate(running)))
    for _ in range(4 * len(running)):
        driver.step()
    driver.submit(request("next", prompt=200, adapter=adapter))
    (outlook,) = driver.scheduler.expectations.outlook()
    return outlook.first_token_ms


def test_who_takes_turns_with_other_adapters_waits_longer() -> None:
    alone, beside_own = first_token_ms("a"), first_token_ms("a", "a")
    one_other, two_others = first_token_ms("a", "b"), first_token_ms("a", "b", None)
    assert alone == beside_own, "they compute together"
    assert (one_other, two_others) == (2 * alone, 3 * alone)


def test_a_cohort_that_only_reads_takes_no_longer_than_its_prompts() -> None:
    driver = Driver(slots=1)
    driver.step(request("hold", output=900))
    driver.submit(request("a", prompt=200, adapter="a"), request("b", prompt=100, adapter="b"))
    waits = [entry.first_token_ms for entry in driver.scheduler.expectations.outlook()]
    driver = Driver(slots=1)
    driver.step(request("hold", output=900))
    driver.submit(request("a", prompt=200), request("b", prompt=100))
    assert [entry.first_token_ms for entry in driver.scheduler.expectations.outlook()] < waits


def test_the_outlook_counts_the_encoding_of_pictures() -> None:
    """By what a row took before. Who asks about text waits for slices between steps alone, and who asks about
    a picture that is saved for nothing."""
    driver = Driver(slots=8, cache_blocks=100)
    driver.run(seeing("first", picture(300)))
    driver.step(seeing("runs", picture(300, 1), output=50), request("other", output=50))
    driver.submit(seeing("sees", picture(300, 2)), request("reads"), seeing("again", picture(300)))
    sees, reads, again = driver.scheduler.expectations.outlook()
    assert sees.first_token_ms - again.first_token_ms >= 600
    assert again.first_token_ms >= reads.first_token_ms
    assert driver.scheduler.expectations.forecast().wait_ms.interactive >= 64
