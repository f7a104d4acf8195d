"""Admission of API calls wherever they are computed, slow readers, and full queues."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine_client.calls import (
    UNKNOWN_S,
    GenerationAnswer,
    RequestAdmission,
    wait_until_left_s,
)
from openai_cpu_server.engine_client.culprits import LIMIT, CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import (
    AdapterNotFound,
    CulpritsLimited,
    DeadlineExceeded,
    InvalidRequest,
    QueueFull,
    ReaderTooSlow,
    RequestCancelled,
)
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO
from tests.scheduler.driver import request

pytestmark = pytest.mark.anyio

POET = Adapter(name="poet", path="p", digest="1" * 64)
CLERK = Adapter(name="clerk", path="c", digest="2" * 64)


class Story:
    def __init__(self, *, max_queue: int = 9) -> None:
        self.live, self.culprits = AcceptedRequests(), CulpritLedger(time.monotonic)
        self.admission = RequestAdmission(
            self,
            self.culprits,
            lambda: (
                AdapterStatus(adapter=POET, state=AdapterState.READY),
                AdapterStatus(adapter=CLERK, state=AdapterState.FAILED, reason="It is too large."),
            ),
            max_queue=max_queue,
            max_held_bytes=10_000,
            clock=time.monotonic,
        )

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        for live in call:
            self.live.add(live)

    def cancel(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.live.remove(request_id)


async def test_a_request_gets_the_adapter_that_has_its_name_now() -> None:
    story = Story()
    story.admission.generate(FAKE_INFO, [request("a/0", adapter="poet"), request("a/1", adapter="poet")])
    assert [live.request.adapter for live in story.live] == [POET.key] * 2
    with pytest.raises(AdapterNotFound, match="poet"):
        story.admission.generate(FAKE_INFO, [request("b", adapter="absent")])
    with pytest.raises(AdapterNotFound, match="It is too large"):
        story.admission.generate(FAKE_INFO, [request("b", adapter="clerk")])
    assert len(story.live) == 2


async def test_a_refused_call_leaves_no_request() -> None:
    story = Story(max_queue=2)
    with pytest.raises(InvalidRequest, match="does not generate"):
        story.admission.generate(FAKE_EMBEDDER, [request("a")])
    with pytest.raises(InvalidRequest, match="does not embed"):
        story.admission.embed(FAKE_INFO, EmbedRequest(id="a", inputs=((1,),)))
    for inputs in ((), (1,) * 65):
        with pytest.raises(InvalidRequest, match=f"Input 1 has {len(inputs)} tokens"):
            story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="a", inputs=((1,), inputs)))
    with pytest.raises(InvalidRequest, match="may wait on this server"):
        story.admission.generate(FAKE_INFO, [request(f"a/{number}") for number in range(3)])
    for number in range(LIMIT):
        story.culprits.book("ann", f"killer-{number}")
    with pytest.raises(CulpritsLimited):
        story.admission.generate(FAKE_INFO, [request("a", account="ann")])
    with pytest.raises(CulpritsLimited):
        story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="a", inputs=((1,),), account="ann"))
    assert not len(story.live)
    story.admission.generate(FAKE_INFO, [request("b"), request("c")])
    with pytest.raises(QueueFull):
        story.admission.generate(FAKE_INFO, [request("d")])
    with pytest.raises(QueueFull):
        story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="e", inputs=((1,),)))
    story.admission.generate(FAKE_INFO, [request("f", priority=Priority.BATCH)])


async def test_a_full_queue_has_room_for_the_share_of_another_account() -> None:
    story = Story(max_queue=4)
    for number in range(4):
        story.admission.generate(FAKE_INFO, [request(f"a{number}", account="ann")])
    for number in range(2):
        story.admission.generate(FAKE_INFO, [request(f"b{number}", account="bob")])
    for account in ("ann", "bob"):
        with pytest.raises(QueueFull):
            story.admission.generate(FAKE_INFO, [request("c", account=account)])


async def test_a_call_is_cancelled_by_its_id_or_that_of_a_sequence_and_its_reader_gets_an_error() -> None:
    story = Story()
    for name in ("a", "a/1"):
        generation = story.admission.generate(FAKE_INFO, [request("a/0"), request("a/1")])
        assert story.admission.cancel(name)
        assert not len(story.live)
        with pytest.raises(RequestCancelled):
            async for _ in generation:
                pass
    assert not story.admission.cancel("a")


REQUESTS = [request(f"a/{i}", output=9) for i in (0, 1)]
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


async def test_a_reader_that_does_not_read_is_dropped_with_its_held_events() -> None:
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


async def test_a_reader_that_reads_too_slowly_is_dropped_too() -> None:
    reader = Reader(20_000)
    events = reader.generation.progress()
    while not reader.cancelled:
        reader.push(3, over_s=0.5)
        if not reader.cancelled:
            await events.__anext__()
    with pytest.raises(ReaderTooSlow):
        await events.__anext__()


async def test_a_dropped_reader_gets_an_error_even_if_the_end_was_among_its_held_events() -> None:
    reader = Reader(1)
    reader.generation.push(EVENT)
    reader.now_s = 2.0
    for one in REQUESTS:
        finish = Finish(reason=FinishReason.STOP, output_tokens=1)
        reader.generation.push(TokenEvent(id=one.id, finish=finish))
    with pytest.raises(ReaderTooSlow):
        await reader.read()


async def test_a_deadline_ends_a_generation_once() -> None:
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
def test_a_full_queue_has_room_when_enough_requests_have_left(
    expected_s: list[float], num: int, wait_s: float
) -> None:
    assert wait_until_left_s(expected_s, num) == wait_s
