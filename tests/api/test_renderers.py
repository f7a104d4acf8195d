"""A running call: its counts for the log, its place in the queue, and its end."""

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


def running_call(
    resolved: ResolvedRequest,
    model: ServedModel,
    request_log: RequestLog | None = None,
    generation: GenerationAnswer | None = None,
) -> RunningCall:
    generation = generation or model.engine.generate(resolved.requests)
    request_log = request_log or RequestLog("r", "POST", "/")
    return RunningCall(
        resolved, generation, model, request_log=request_log, calls=RunningCalls(), refusals=GrammarRefusals()
    )


async def test_output_tokens_are_counted_for_the_log() -> None:
    model, resolved, request_log = served(FakeEngine()).default, call(), RequestLog("r", "POST", "/")
    async with running_call(resolved, model, request_log) as running:
        items = [item async for item in running.emit(CHAT.renderer.stream(resolved, model.pieces))]
    assert items
    assert request_log.call is not None
    assert request_log.notes["output_tokens"] == request_log.call.figures.output_tokens > 0


async def test_a_waiting_call_streams_its_place() -> None:
    """The place has the shape of any progress, which test_generation.py shows for each family."""
    model, engine = served(FakeEngine()).default, FakeEngine(is_held=True)
    resolved = msgspec.structs.replace(call(), details=DetailsParam(progress=True))
    generation = engine.generate(resolved.requests)
    async with running_call(resolved, model, generation=generation) as running:
        items = running.emit(CHAT.renderer.stream(resolved, model.pieces))
        chunk = asyncio.ensure_future(first_with(items, b"place"))

        def has_place() -> bool:
            """Repeat the place as an engine does."""
            generation.wait_at(QueuePlace(resolved.requests[0].id, 3, 1234.0))
            return chunk.done()

        await eventually(has_place)
    expected = {"total": 3, "cache": 0, "processed": 0, "time_ms": 0, "place": 3, "seconds_left": 1.23}
    assert json.loads(await chunk)["prompt_progress"] == expected


async def first_with(items: AsyncIterator[StreamItem], word: bytes) -> bytes:
    chunks: list[bytes] = []
    while not any(word in chunk for chunk in chunks):
        item = await anext(items)
        assert not isinstance(item, (QueuePlace, ModelLoading))
        chunks += (chunk.json for chunk in item)
    return next(chunk for chunk in chunks if word in chunk)


async def test_leaving_a_call_ends_its_requests() -> None:
    engine = FakeEngine(is_held=True)
    model, resolved = served(engine).default, call(n=3)
    async with running_call(resolved, model):
        assert len(engine.requests()) == 3
    assert engine.requests() == []


async def test_gaps_are_measured_between_arrivals() -> None:
    """The time at which the client reads does not count."""
    now_s = 0.0
    resolved = call()
    generation = GenerationAnswer(resolved.requests, cancel=lambda _: None, clock=lambda: now_s)
    for now_s, tokens in ((1.0, (5,)), (3.0, (6,)), (9.0, (7, 8))):  # noqa: B007 (the clock reads it)
        generation.push(TokenEvent(id=resolved.requests[0].id, tokens=tokens, text="x"))
    now_s = 100.0
    tally, events = Tally(resolved), generation.progress()
    for _ in range(3):
        event = await anext(events)
        assert isinstance(event, TokenEvent)
        tally.note(event, generation.arrived_s)
    ended = tally.ended(tally.figures(generation.figures), began_s=0.5, model="m")
    assert (ended.gaps.num, ended.gaps.sum_s) == (3, 8.0)
    assert (ended.ttft_s, ended.figures.output_tokens) == (0.5, 4)


def test_a_grammar_that_failed_late_is_refused_for_its_client_and_outputs_of_that_length() -> None:
    refusals, resolved = GrammarRefusals(), with_grammar("a")
    refusals.add(resolved, "m", "too slow", num_tokens=5, elapsed_s=0.5)
    refusals.check(resolved, "m")
    refusals.add(resolved, "m", "too slow", num_tokens=5, elapsed_s=1.5)
    with pytest.raises(ConstraintFailed, match="too slow") as refusal:
        refusals.check(resolved, "m")
    assert refusal.value.param == "grammar"
    refusals.check(resolved, "another model")
    for other in (with_grammar("b"), with_grammar("a", client="other"), with_grammar("a", max_tokens=4)):
        refusals.check(other, "m")


def with_grammar(grammar: str, **fields: object) -> ResolvedRequest:
    resolved = call()
    requests = [
        msgspec.structs.replace(request, constraint=Constraint(grammar=grammar), **fields)
        for request in resolved.requests
    ]
    return msgspec.structs.replace(resolved, requests=tuple(requests), grammar_path="grammar")
