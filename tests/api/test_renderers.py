"""A renderer says what is told; event stream and WebSocket only frame it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from openai_cpu_server.api.asking.renderer import Chunk, Renderer
from openai_cpu_server.api.asking.route import events
from openai_cpu_server.api.asking.running import RunningCall, Tally
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.engine_client.answers import GenerationAnswer
from openai_cpu_server.http.context import Ticket
from openai_cpu_server.http.errors import ErrorObject
from tests.api.calls import call
from tests.api.fake_engine import FakeEngine
from tests.api.serving import served

pytestmark = pytest.mark.anyio


class Named:
    """A family whose events have names, and which has something to say before the first token."""

    last_words = None

    def begin(self) -> Sequence[Chunk]:
        return (Chunk(b"{}", "created"),)

    def waits(self, news: QueuePlace | ModelLoading) -> Sequence[Chunk]:
        return ()

    def silence(self) -> Sequence[Chunk]:
        return ()

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        return (Chunk(b'{"n":%d}' % len(event.tokens), "delta"),) if event.tokens else ()

    def end(self, figures: Figures) -> Sequence[Chunk]:
        return (Chunk(b'{"total":%d}' % figures.output_tokens, "completed"), Chunk(b"{}"))

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        return (Chunk(b"{}", "failed"),)


async def told(renderer: Renderer) -> list[bytes]:
    model, one = served(FakeEngine()).default, call()
    running = RunningCall(one, model.engine.generate(one.requests), model, ticket=Ticket("r", "POST", "/"))
    async with running:
        return [events(said) async for said in running.tell(renderer) if not isinstance(said, QueuePlace)]


async def test_names_go_with_their_objects_from_the_first_to_the_last() -> None:
    first, *deltas, last = await told(Named())
    assert first == b"event: created\ndata: {}\n\n"
    assert set(deltas) == {b'event: delta\ndata: {"n":1}\n\n'}
    assert last == b'event: completed\ndata: {"total":%d}\n\ndata: {}\n\n' % len(deltas)


async def test_what_was_told_is_counted_for_the_log() -> None:
    model, one, ticket = served(FakeEngine()).default, call(), Ticket("r", "POST", "/")
    async with RunningCall(one, model.engine.generate(one.requests), model, ticket=ticket) as running:
        async for _ in running.tell(Named()):
            pass
    assert ticket.call is not None
    assert ticket.notes["output_tokens"] == ticket.call.figures.output_tokens > 0


async def test_who_leaves_ends_the_call() -> None:
    engine = FakeEngine(is_held=True)
    model, one = served(engine).default, call(n=3)
    async with RunningCall(one, engine.generate(one.requests), model, ticket=Ticket("r", "POST", "/")):
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
