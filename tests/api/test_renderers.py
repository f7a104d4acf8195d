"""What becomes of a call that is told: counts, places in the queue, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.params import DetailsParam
from openai_cpu_server.api.generation.running import (
    GrammarRefusals,
    RunningCall,
    RunningCalls,
    StreamItem,
    Tally,
)
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.http.context import RequestLog
from openai_cpu_server.models.served import ServedModel
from tests.api.calls import call
from tests.api.fake_engine import FakeEngine
from tests.api.serving import served
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


def begun(one: ResolvedRequest, model: ServedModel, request_log: RequestLog | None = None) -> RunningCall:
    generation = model.engine.generate(one.requests)
    request_log = request_log or RequestLog("r", "POST", "/")
    return RunningCall(
        one, generation, model, request_log=request_log, calls=RunningCalls(), refusals=GrammarRefusals()
    )


async def test_what_was_told_is_counted_for_the_log() -> None:
    model, one, request_log = served(FakeEngine()).default, call(), RequestLog("r", "POST", "/")
    async with begun(one, model, request_log) as running:
        told = [said async for said in running.emit(CHAT.renderer.stream(one, model.pieces))]
    assert told
    assert request_log.call is not None
    assert request_log.notes["output_tokens"] == request_log.call.figures.output_tokens > 0


async def test_who_waits_is_told_the_place() -> None:
    """In the shape of any progress, which test_generation.py shows for each family."""
    model, engine = served(FakeEngine()).default, FakeEngine(is_held=True)
    one = msgspec.structs.replace(call(), details=DetailsParam(progress=True))
    generation = engine.generate(one.requests)
    async with RunningCall(
        one,
        generation,
        model,
        request_log=RequestLog("r", "POST", "/"),
        calls=RunningCalls(),
        refusals=GrammarRefusals(),
    ) as it:
        told = it.emit(CHAT.renderer.stream(one, model.pieces))
        coming = asyncio.ensure_future(first_with(told, b"place"))

        def is_told() -> bool:
            """The place lasts, and the engine says it again and again."""
            generation.wait_at(QueuePlace(one.requests[0].id, 3, 1234.0))
            return coming.done()

        await eventually(is_told)
    expected = {"total": 3, "cache": 0, "processed": 0, "time_ms": 0, "place": 3, "seconds_left": 1.23}
    assert json.loads(await coming)["prompt_progress"] == expected


async def first_with(told: AsyncIterator[StreamItem], word: bytes) -> bytes:
    async for said in told:
        assert not isinstance(said, (QueuePlace, ModelLoading))
        for chunk in said:
            if word in chunk.json:
                return chunk.json
    raise AssertionError(f"no {word!r}")


async def test_who_leaves_ends_the_call() -> None:
    engine = FakeEngine(is_held=True)
    model, one = served(engine).default, call(n=3)
    async with begun(one, model):
        assert len(engine.requests()) == 3
    assert engine.requests() == []


async def test_gaps_are_those_between_arrivals() -> None:
    """However soon the client reads."""
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


def test_a_grammar_that_failed_late_is_refused_for_its_client_and_outputs_as_long() -> None:
    refusals, one = GrammarRefusals(), with_grammar("a")
    refusals.add(one, "m", "too slow", num_tokens=5, elapsed_s=0.5)
    refusals.check(one, "m")
    refusals.add(one, "m", "too slow", num_tokens=5, elapsed_s=1.5)
    with pytest.raises(ConstraintFailed, match="too slow") as refused:
        refusals.check(one, "m")
    assert refused.value.param == "grammar"
    refusals.check(one, "another model")
    for other in (with_grammar("b"), with_grammar("a", client="other"), with_grammar("a", max_tokens=4)):
        refusals.check(other, "m")


def with_grammar(grammar: str, **fields: object) -> ResolvedRequest:
    one = call()
    requests = [
        msgspec.structs.replace(each, constraint=Constraint(grammar=grammar), **fields)
        for each in one.requests
    ]
    return msgspec.structs.replace(one, requests=tuple(requests), grammar_path="grammar")
