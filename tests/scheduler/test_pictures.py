"""Pictures in prompts: encoding is scheduled like other work, and its rows and cells serve other requests.

The fake backend asserts the preconditions of a real one.
"""

from __future__ import annotations

import random

import pytest

from openai_cpu_server.contract.media import MediaEmbeddings, Picture, PictureSize, placed
from openai_cpu_server.contract.request import GenerationRequest, Priority
from tests.scheduler.driver import Driver, request

KINDS = {
    "causal": MediaEmbeddings(40, 40),
    "whole": MediaEmbeddings(40, 40, is_whole=True),
    "in one place": MediaEmbeddings(40, 8, has_one_place=True),
}
LONG_MS, SHORT_MS = 300, 50


def picture(ms: int, shade: int = 0, *, height: int = 1) -> Picture:
    return Picture.of(PictureSize(ms, height), bytes([shade]) * (3 * ms * height))


def question(
    name: str,
    *pictures: Picture,
    rows: MediaEmbeddings = KINDS["causal"],
    before: int = 10,
    behind: int = 10,
    **more: object,
) -> GenerationRequest:
    """Return a request with `before` tokens, the pictures, each between two marks, and `behind` tokens."""
    shapes = [((7,), rows, (8,))] * len(pictures)
    between = [range(20, 25)] * (len(pictures) - 1)
    texts = [range(30, 30 + before), *between, range(60, 60 + behind)]
    tokens, media = placed(pictures, shapes, [tuple(text) for text in texts])
    return request(name, tokens=tokens, media_items=pictures, media=media, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_about_a_picture_is_that_of_an_idle_machine(kind: str) -> None:
    driver = Driver(cache_blocks=100)
    for name, num_rows in (("a", 2), ("b", 0)):  # the second time nothing is encoded
        driver.backend.rows.clear()
        one = question(name, picture(LONG_MS), picture(SHORT_MS, 1), rows=KINDS[kind])
        driver.run(one)
        assert len(driver.backend.rows) == num_rows
    assert driver.cached["b"] == len(one.tokens) - 1


def test_streams_continue_while_a_picture_is_encoded() -> None:
    driver = Driver(decoding=32)
    driver.step(request("stream", output=100))
    driver.step(question("a", picture(LONG_MS)))
    while not driver.backend.rows:
        assert driver.step()["stream"] == 1, "each step has a token of the stream"
        assert driver.predicted_ms[-1] <= 32 + 64
    driver.run()


def test_text_before_a_picture_is_read_while_it_is_encoded() -> None:
    driver = Driver()
    driver.step(question("a", picture(LONG_MS), before=30))
    driver.step()
    assert not driver.backend.rows
    assert len(driver.backend.cells[driver.scheduler.sequences.get("a").slot]) == 31


def test_interactive_pictures_come_first_and_an_abandoned_encoding_is_completed_in_the_end() -> None:
    driver = Driver(decoding=32)
    driver.submit(question("batch", picture(LONG_MS), priority=Priority.BATCH))
    driver.steps(3)
    for number in range(5):
        driver.submit(question(f"i{number}", picture(SHORT_MS, number + 1), output=2))
        driver.run_until(lambda number=number: f"i{number}" in driver.finished)
    assert driver.backend.num_discarded == 2, "more abandoned encodings would starve the batch picture"
    driver.run()


def test_a_picture_that_cannot_be_encoded_ends_its_own_request() -> None:
    driver = Driver()
    bad, good = question("bad", picture(SHORT_MS, height=13)), question("good", picture(SHORT_MS))
    driver.run(request("other", output=20), bad, good)
    assert driver.failures == {"bad": "the picture cannot be encoded"}


def test_cancelling_a_request_ends_its_encoding() -> None:
    driver = Driver()
    driver.step(question("a", picture(LONG_MS)))
    driver.cancel("a")
    driver.run(request("b"))
    assert not driver.backend.rows


@pytest.mark.parametrize(("kind", "cached"), [("causal", 64), ("whole", 51), ("in one place", 51)])
def test_other_requests_begin_within_a_picture_only_where_it_can_be_cut(kind: str, cached: int) -> None:
    """Only one block of the first request stays cached, and that block ends within the picture."""
    driver = Driver(cache_blocks=2)
    for one in (question("a", picture(SHORT_MS), rows=KINDS[kind], before=50), request("evicts", prompt=50)):
        driver.run(one)
    driver.run(question("b", picture(SHORT_MS), rows=KINDS[kind], before=50, behind=40))
    assert driver.cached["b"] == cached


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_answers_are_those_of_an_idle_machine(seed: int, stateful: bool) -> None:
    rng = random.Random(seed)
    cache_blocks = rng.choice([0, 5, 1000])
    driver = Driver(slots=4, kv_tokens=512, cache_blocks=cache_blocks, stateful=stateful)
    for number in range(60):
        kind, name, priority = rng.choice(list(KINDS)), f"r{number}", rng.choice(list(Priority))
        shades = [rng.randrange(2) for _ in range(rng.choice([0, 1, 1, 2]))]
        if pictures := [picture(rng.choice([5, 40, 90]), shade) for shade in shades]:
            texts = {"before": rng.choice([0, 1, 20, 60]), "behind": rng.choice([1, 30])}
            shape = {"rows": KINDS[kind], "cache_namespace": kind}
            driver.step(question(name, *pictures, priority=priority, **shape, **texts))
        else:
            driver.step(request(name, prompt=rng.choice([1, 70]), priority=priority))
        for _ in range(rng.randrange(6)):
            driver.step(interrupt=rng.random() < 0.1 and driver.interruptible[-1:] == [True])
        if rng.random() < 0.05:
            driver.crash(lost=rng.randrange(3))
        if rng.random() < 0.05:
            driver.cancel(name)
    driver.run()
