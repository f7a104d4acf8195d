"""What those who watch are told of steps, and that nobody else pays for it."""

from __future__ import annotations

import logging

import msgspec
import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.framing import LENGTH, frame, read_event
from openai_cpu_server.contract.messages import EngineOptions, HideSteps, ShowSteps, StepDone, Submit
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.contract.step import ShownPart, ShownState
from openai_cpu_server.engine.embedding import EmbedCore, build_embed_core
from openai_cpu_server.engine.generating import EngineCore, build_core
from tests.fakes import FAKE_INFO, SPECULATION, FakeBackend, FakeEmbedder
from tests.scheduler.driver import request

CURVE = CostCurve(step_ms=((1, 5.0), (256, 1000.0)), attended_ms=0.0)


def watched(
    *requests: GenerationRequest, max_seqs: int = 64, cache_bytes: int = 0, speculation: str = "off"
) -> EngineCore:
    """A core that shows its steps, and has the requests."""
    options = EngineOptions(model_path="", **SPECULATION[speculation], cache_bytes=cache_bytes)
    info = msgspec.structs.replace(FAKE_INFO, max_seqs=max_seqs)
    engine = build_core(options, FakeBackend(info), CURVE)
    engine.handle(ShowSteps())
    for one in requests:
        engine.handle(Submit(one))
    return engine


def step(engine: EngineCore | EmbedCore) -> list[StepDone]:
    return [event for event in engine.step() if isinstance(event, StepDone)]


def steps(engine: EngineCore | EmbedCore) -> list[StepDone]:
    found = []
    while engine.has_work:
        found += step(engine)
    return found


def parts(told: list[StepDone]) -> list[ShownPart]:
    return [part for step in told if step.shown for part in step.shown.parts]


def states(told: list[StepDone]) -> list[ShownState]:
    return [step.shown.state for step in told if step.shown and step.shown.state]


def test_nobody_watches_or_does_any_more_and_nothing_is_told() -> None:
    engine = watched(request("a", output=4))
    assert parts(step(engine))
    engine.handle(HideSteps())
    told = steps(engine)
    assert [step.shown for step in told] == [None] * len(told)
    assert b"shown" not in frame(told[0])


CHAT = request("chat", prompt=3, output=2, client="key:ann")
JOB = request("job", prompt=4, output=1, priority=Priority.BATCH)


def test_who_is_in_each_step_is_told_by_kind_of_token() -> None:
    told = parts(steps(watched(CHAT, JOB)))
    for step in steps(watched(CHAT)):
        assert read_event(frame(step)[LENGTH.size :]) == step
    assert [part for part in told if part.id == "chat"] == [
        ShownPart("chat", "key:ann", Priority.INTERACTIVE, "prompt", prompt=3, output=1),
        ShownPart("chat", "key:ann", Priority.INTERACTIVE, "decode", decode=1, output=1),
    ]


def test_forced_tokens_are_told_apart_and_drafts_with_how_many_were_right() -> None:
    told = parts(steps(watched(request("a", output=9, constraint=Constraint(grammar="?abc?")))))
    assert sum(part.forced for part in told) == 3
    assert sum(part.output for part in told) == 6  # the last one ends it
    told = parts(steps(watched(request("a", prompt=60, output=40), speculation="always")))
    assert sum(part.output for part in told) == 40
    assert all(0 <= part.accepted <= part.draft for part in told)


def test_who_begins_to_watch_an_idle_engine_is_told_how_the_memory_stands_and_it_rests_again() -> None:
    engine = watched(cache_bytes=6400)
    (state,) = states(steps(engine))
    assert (state.pool_tiles, state.tile_blocks, state.holdings) == (256, 1, ())
    assert not engine.has_work


def test_shared_cells_are_held_by_all_who_share_them() -> None:
    long = request("a", prompt=100, output=30)
    engine = watched(long)
    engine.handle(HideSteps())
    step(engine)
    step(engine)
    engine.handle(Submit(msgspec.structs.replace(long, id="b")))
    step(engine)
    engine.handle(ShowSteps())
    (state, *_) = states(step(engine))
    tiles = [{first + n for first, count in h.runs for n in range(count)} for h in state.holdings]
    assert [h.id for h in state.holdings] == ["a", "b"]
    assert len(tiles[0] & tiles[1]) == 99 // 16


def test_those_who_wait_are_told_why() -> None:
    engine = watched(request("a", output=3), request("b", output=3), max_seqs=1)
    (state, *_) = states(step(engine))
    assert [(wait.id, wait.why) for wait in state.waits] == [("b", "slot")]
    last = states(steps(engine))[-1]
    assert (last.holdings, last.waits) == ((), ())  # the picture of an idle engine is empty


def test_inputs_that_are_embedded_are_told_too() -> None:
    engine = build_embed_core(EngineOptions(model_path=""), FakeEmbedder())
    engine.handle(ShowSteps())
    engine.handle(Submit(EmbedRequest(id="e", inputs=((3, 4), (5,)), client="user:bob")))
    assert parts(steps(engine)) == [ShownPart("e", "user:bob", Priority.INTERACTIVE, "prompt", prompt=3)]


def test_each_step_is_logged_with_who_was_in_it_at_debug_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="openai_cpu_server.engine.trace")
    steps(watched(CHAT, JOB))
    assert caplog.records == []
    caplog.set_level(logging.DEBUG, logger="openai_cpu_server.engine.trace")
    steps(watched(CHAT, JOB))
    logged = [record.fields for record in caplog.records]
    keys = ("id", "priority", "tokens", "decodes")
    spans = [(*map(part.get, keys), *part["why"].items()) for step in logged for part in step["spans"]]
    assert sorted(spans) == [
        ("chat", "interactive", 1, True, ("decode", 1)),
        ("chat", "interactive", 3, False, ("prompt", 3)),
        ("job", "batch", 4, False, ("prompt", 4)),
    ]
    assert all(step["elapsed_ms"] >= 0 and step["interrupted"] is False for step in logged)
    assert [step["started_s"] for step in logged] == sorted(step["started_s"] for step in logged)
    assert "tokens of" in caplog.records[0].getMessage()
