"""The numbers of a call do not depend on how soon its client reads."""

from __future__ import annotations

import pytest

from openai_cpu_server.api.asking.running import Tally
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.engine_client.answers import GenerationAnswer
from tests.api.calls import call

pytestmark = pytest.mark.anyio


async def test_gaps_are_those_between_arrivals() -> None:
    now_s = 0.0
    one = call()
    generation = GenerationAnswer(one.requests, cancel=lambda _: None, clock=lambda: now_s)
    for now_s, tokens in ((1.0, (5,)), (3.0, (6,)), (9.0, (7, 8))):  # noqa: B007 (the clock reads it)
        generation.push(TokenEvent(id=one.requests[0].id, tokens=tokens, text="x"))
    now_s = 100.0
    tally, events = Tally(one), generation.progress()
    for _ in range(3):
        event = await anext(events)
        assert isinstance(event, TokenEvent)
        tally.note(event, generation.arrived_s)
    ended = tally.ended(tally.figures(generation.figures), began_s=0.5, model="m")
    assert (ended.gaps.num, ended.gaps.sum_s) == (3, 8.0)
    assert (ended.ttft_s, ended.figures.output_tokens) == (0.5, 4)
