"""Readers who do not keep up; and when a full queue has room again."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Sampling
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine_client.admission import UNKNOWN_S, wait_until_left_s
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.errors import DeadlineExceeded, ReaderTooSlow

pytestmark = pytest.mark.anyio

REQUESTS = [
    GenerationRequest(id=f"a/{i}", tokens=(1,), max_tokens=9, sampling=Sampling(seed=0)) for i in (0, 1)
]
SCORES = (TokenLogprob(1, -1.0, tuple((i, -1.0) for i in range(20))),)
EVENT = TokenEvent(id="a/0", tokens=(1,), text="x", logprobs=SCORES)


class Reader:
    def __init__(self, max_held_bytes: int) -> None:
        self.now_s = 0.0
        self.cancelled: list[str] = []
        self.seen: list[TokenEvent] = []
        self.generation = GenerationAnswer(
            REQUESTS, cancel=self.cancelled.append, clock=lambda: self.now_s, max_held_bytes=max_held_bytes
        )

    async def read(self) -> None:
        async for event in self.generation:
            self.seen.append(event)

    def push(self, number: int, *, over_s: float) -> None:
        for _ in range(number):
            self.generation.push(EVENT)
            self.now_s += over_s / number


async def test_who_does_not_read_is_dropped_with_what_was_held() -> None:
    reader = Reader(10_000)
    reader.push(100, over_s=5)
    assert sorted(reader.cancelled) == ["a/0", "a/1"]
    with pytest.raises(ReaderTooSlow):
        await reader.read()
    assert not reader.seen


async def test_a_burst_is_not_the_readers_fault() -> None:
    reader = Reader(10_000)
    reader.push(100, over_s=0.5)
    events = reader.generation.progress()
    for _ in range(100):
        await events.__anext__()
    reader.now_s = 60.0
    reader.push(2, over_s=1)
    assert not reader.cancelled


async def test_who_reads_some_but_not_enough_is_dropped_too() -> None:
    reader = Reader(20_000)
    events = reader.generation.progress()
    while not reader.cancelled:
        reader.push(3, over_s=0.5)
        if not reader.cancelled:
            await events.__anext__()
    with pytest.raises(ReaderTooSlow):
        await events.__anext__()


async def test_the_drop_is_seen_even_if_the_end_was_among_what_was_held() -> None:
    reader = Reader(1)
    reader.generation.push(EVENT)
    reader.now_s = 2.0
    for request in REQUESTS:
        finish = Finish(reason=FinishReason.STOP, output_tokens=1)
        reader.generation.push(TokenEvent(id=request.id, finish=finish))
    with pytest.raises(ReaderTooSlow):
        await reader.read()


async def test_time_ends_a_generation_once() -> None:
    reader = Reader(10_000)
    reader.push(1, over_s=0)
    reader.generation.fail_in(-1.0, DeadlineExceeded(3))
    with pytest.raises(DeadlineExceeded, match="3 seconds"):
        await reader.read()
    assert reader.seen == [EVENT]
    assert sorted(reader.cancelled) == ["a/0", "a/1"]


@pytest.mark.parametrize(
    ("expected_s", "num", "wait_s"),
    [([], 3, UNKNOWN_S), ([2.0, 5.0], 1, 2.0), ([2.0, 5.0], 2, 5.0), ([2.0, 5.0], 4, 10.0)],
)
def test_a_full_queue_has_room_when_enough_have_left(
    expected_s: list[float], num: int, wait_s: float
) -> None:
    assert wait_until_left_s(expected_s, num) == wait_s
