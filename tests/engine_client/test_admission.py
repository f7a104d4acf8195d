"""What becomes of API calls that are accepted, wherever they are computed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.model_info import Adapter, AdapterState, AdapterStatus
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.admission import RequestAdmission
from openai_cpu_server.engine_client.culprits import LIMIT, CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests
from openai_cpu_server.errors import (
    AdapterNotFound,
    CulpritsLimited,
    InvalidRequest,
    QueueFull,
    RequestCancelled,
)
from tests.fakes import FAKE_EMBEDDER, FAKE_INFO
from tests.scheduler.driver import request

pytestmark = pytest.mark.anyio

POET = Adapter(name="poet", path="p", digest="1" * 64)
CLERK = Adapter(name="clerk", path="c", digest="2" * 64)


class Carrier:
    def __init__(self) -> None:
        self.live = AcceptedRequests()

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        for live in call:
            self.live.add(live)

    def cancel(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.live.remove(request_id)


class Story:
    def __init__(self, *, max_queue: int = 9) -> None:
        self.carrier, self.culprits = Carrier(), CulpritLedger(time.monotonic)
        self.admission = RequestAdmission(
            self.carrier,
            self.culprits,
            lambda: (
                AdapterStatus(adapter=POET, state=AdapterState.READY),
                AdapterStatus(adapter=CLERK, state=AdapterState.FAILED, reason="It is too large."),
            ),
            max_queue=max_queue,
            max_held_bytes=10_000,
            clock=time.monotonic,
        )


async def test_a_request_gets_the_adapter_that_has_its_name_now() -> None:
    story = Story()
    story.admission.generate(FAKE_INFO, [request("a/0", adapter="poet"), request("a/1", adapter="poet")])
    assert [live.request.adapter for live in story.carrier.live] == [POET.key] * 2
    with pytest.raises(AdapterNotFound, match="poet"):
        story.admission.generate(FAKE_INFO, [request("b", adapter="nobody")])
    with pytest.raises(AdapterNotFound, match="It is too large"):
        story.admission.generate(FAKE_INFO, [request("b", adapter="clerk")])
    assert len(story.carrier.live) == 2


async def test_what_is_refused_leaves_nothing() -> None:
    story = Story(max_queue=2)
    with pytest.raises(InvalidRequest, match="does not generate"):
        story.admission.generate(FAKE_EMBEDDER, [request("a")])
    with pytest.raises(InvalidRequest, match="does not embed"):
        story.admission.embed(FAKE_INFO, EmbedRequest(id="a", inputs=((1,),)))
    for inputs in ((), (1,) * 65):
        with pytest.raises(InvalidRequest, match=f"Input 1 has {len(inputs)} tokens"):
            story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="a", inputs=((1,), inputs)))
    with pytest.raises(InvalidRequest, match="may wait at once"):
        story.admission.generate(FAKE_INFO, [request(f"a/{number}") for number in range(3)])
    for number in range(LIMIT):
        story.culprits.book("ann", f"killer-{number}")
    with pytest.raises(CulpritsLimited):
        story.admission.generate(FAKE_INFO, [request("a", account="ann")])
    with pytest.raises(CulpritsLimited):
        story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="a", inputs=((1,),), account="ann"))
    assert not len(story.carrier.live)
    story.admission.generate(FAKE_INFO, [request("b"), request("c")])
    with pytest.raises(QueueFull):
        story.admission.generate(FAKE_INFO, [request("d")])
    with pytest.raises(QueueFull):
        story.admission.embed(FAKE_EMBEDDER, EmbedRequest(id="e", inputs=((1,),)))
    story.admission.generate(FAKE_INFO, [request("f", priority=Priority.BATCH)])


async def test_a_call_is_ended_by_its_own_name_or_a_sequences_and_its_reader_is_told() -> None:
    story = Story()
    for name in ("a", "a/1"):
        generation = story.admission.generate(FAKE_INFO, [request("a/0"), request("a/1")])
        assert story.admission.cancel(name)
        assert not len(story.carrier.live)
        with pytest.raises(RequestCancelled):
            async for _ in generation:
                pass
    assert not story.admission.cancel("a")
