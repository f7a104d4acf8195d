"""Requests whose output is constrained, through the engine's core and its fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from openai_cpu_server.contract.messages import CancelRequest, FinishReason, Submit, TokenEvent
from openai_cpu_server.contract.request import Constraint, GenerationRequest
from openai_cpu_server.errors import GenerationFailed
from tests.engine.test_core import Engine
from tests.engine_client.test_client import (
    client,
    collect,
    expected_text,
    have_advanced,
    kill_engine,
    running,
    text,
)
from tests.fakes import CONTROL_TOKEN, END_TOKEN
from tests.scheduler.driver import alone, request
from tests.waiting import eventually


def constrained(
    name: str, pattern: str, *, opening: tuple[int, ...] = (), output: int = 60, **more: object
) -> GenerationRequest:
    return request(name, output=output, constraint=Constraint(grammar=pattern, opening=opening), **more)


def shown(engine: Engine, name: str) -> str:
    return text([event for event in engine.events if event.id == name])


def generate(*requests: GenerationRequest) -> Engine:
    engine = Engine()
    engine.serve(*requests)
    return engine


def resumed(one: GenerationRequest, tokens: Sequence[int]) -> Engine:
    """Another engine has told these tokens of it."""
    engine = Engine()
    engine.core.handle(Submit(one, output=tuple(tokens)))
    engine.run()
    return engine


def ending(engine: Engine, name: str = "a") -> tuple[FinishReason, int]:
    finish = engine.finish(name)
    return finish.reason, finish.output_tokens


def test_a_sample_and_what_it_forces_come_in_one_event() -> None:
    one = constrained("a", "{a?bcd?}")
    engine = generate(one)
    assert engine.told("a") == alone(one)[:-1]
    assert [len(event.tokens) for event in engine.events] == [6, 2]
    assert shown(engine, "a")[:2] + shown(engine, "a")[3:6] == "{abcd"
    assert ending(engine) == (FinishReason.STOP, 9)


def test_an_output_without_a_choice_is_never_computed() -> None:
    engine = generate(constrained("a", "yes"))
    assert shown(engine, "a") == "yes"
    assert ending(engine) == (FinishReason.STOP, 4)
    assert engine.backend.num_computed == 0


@pytest.mark.parametrize("limit", range(1, 8))
def test_forced_tokens_keep_to_the_limit(limit: int) -> None:
    one = constrained("a", "{a?bc?}", output=limit)
    engine = generate(one)
    assert engine.told("a") == alone(one)
    assert ending(engine) == (FinishReason.LENGTH, limit)


@pytest.mark.parametrize(
    ("pattern", "output", "forced"),
    [("yes", 60, 4), ("{a?bcd?}", 60, 7), ("{a?bc?}", 5, 4), ("??", 60, 1), ("???", 2, 0)],
)
def test_tokens_that_were_not_sampled_are_counted(pattern: str, output: int, forced: int) -> None:
    assert generate(constrained("a", pattern, output=output)).finish().forced_tokens == forced


def test_where_log_probabilities_are_asked_for_all_are_sampled() -> None:
    finish = generate(constrained("a", "{a?bcd?}", top_logprobs=0)).finish("a")
    assert (finish.output_tokens, finish.forced_tokens) == (9, 0)


def test_the_end_counts_as_a_token_and_nothing_asked_for_is_nothing_forced() -> None:
    assert ending(generate(constrained("a", "{a?bc?}", output=8))) == (FinishReason.STOP, 8)
    assert ending(generate(constrained("a", "abc", output=0))) == (FinishReason.LENGTH, 0)


def test_a_stop_string_ends_the_output_within_forced_tokens_and_within_the_beginning() -> None:
    engine = generate(constrained("a", "?abcdef?", stop=("cd",)))
    assert shown(engine, "a")[1:] == "ab"
    assert ending(engine) == (FinishReason.STOP, 5)
    engine = generate(constrained("a", "abcdef?", stop=("cd",)))
    assert shown(engine, "a") == "ab"
    assert engine.backend.num_computed == 0


def test_scored_tokens_come_one_by_one_and_are_the_same() -> None:
    free = constrained("a", "{a?bc?}")
    scored = request("b", tokens=free.tokens, output=60, constraint=free.constraint, top_logprobs=1)
    engine = generate(free, scored)
    assert engine.told("a") == engine.told("b")
    events = [event for event in engine.events if event.id == "b"]
    assert [logprob.token for event in events for logprob in event.logprobs] == engine.told("b")


def test_prompt_scores_come_with_a_forced_beginning() -> None:
    engine = generate(constrained("a", "{ab?", prompt=9, prompt_logprobs=True))
    assert sum(len(event.prompt_logprobs) for event in engine.events) == 8
    assert shown(engine, "a")[:3] == "{ab"


@pytest.mark.parametrize(("shows", "start"), [(True, "[CONTROL]{"), (False, "{")])
def test_control_tokens_are_text_where_they_are_asked_for(shows: bool, start: str) -> None:
    engine = generate(constrained("a", "{?}", opening=(CONTROL_TOKEN,), show_control_tokens=shows))
    assert shown(engine, "a")[: len(start)] == start
    assert engine.told("a")[0] == CONTROL_TOKEN
    assert END_TOKEN not in engine.told("a")


PANICKED = "The engine could not handle this request (Panic)."


@pytest.mark.parametrize(
    ("pattern", "error", "output"),
    [("(", "the pattern is broken", 0), ("{??!", "the pattern has failed", 2), ("%", PANICKED, 0)],
    ids=["broken", "fails on its way", "panics while it is prepared"],
)
def test_a_grammar_that_fails_ends_only_its_own_request(pattern: str, error: str, output: int) -> None:
    one = constrained("good", "{???}")
    engine = generate(constrained("bad", pattern), one)
    finish = engine.finish("bad")
    assert (finish.reason, finish.error, finish.output_tokens) == (FinishReason.ERROR, error, output)
    assert engine.told("good") == alone(one)[:-1]
    assert engine.backend.cells == {}


@pytest.mark.parametrize("num_told", range(9))
def test_an_output_goes_on_where_a_dead_engine_left_it(num_told: int) -> None:
    one = constrained("a", "{a?*bc?}", opening=(7,))
    whole = alone(one)[:-1]
    engine = resumed(one, whole[:num_told])
    assert engine.told("a") == whole[num_told:]
    assert ending(engine) == (FinishReason.STOP, len(whole) + 1)


def test_what_is_not_told_when_a_request_is_cancelled_is_not_told_at_all() -> None:
    engine = Engine()
    engine.submit(constrained("a", "{ab?"))
    engine.core.handle(CancelRequest("a"))
    engine.run()
    assert engine.events == [TokenEvent(id="a", finish=engine.finish("a"))]


@pytest.mark.anyio
@pytest.mark.thorough
@pytest.mark.parametrize(("pattern", "said", "restarts"), [("#", "died each time", 2), ("%", "Panic", 0)])
async def test_who_kills_or_panics_while_it_is_prepared_fails_alone(
    pattern: str, said: str, restarts: int
) -> None:
    innocent = [request(f"r{i}", output=80) for i in range(4)]
    async with running(client("step_s=0.01")) as engine:
        streams = [asyncio.create_task(collect(engine, one)) for one in innocent]
        await eventually(lambda: have_advanced(engine, 4))
        with pytest.raises(GenerationFailed, match=said):
            await collect(engine, constrained("poison", pattern))
        results = await asyncio.gather(*streams)
        assert engine.status().restarts == restarts
    assert [text(events) for events in results] == [expected_text(one) for one in innocent]


@pytest.mark.anyio
@pytest.mark.thorough
async def test_a_crash_changes_nothing_though_a_burst_was_told_in_part() -> None:
    """What may become the stop string is held back, and lost with the engine."""
    one = constrained("a", "{??xxxx?yy" + 20 * "?*xx" + "}", output=200, stop=("xxz",))
    events: list[TokenEvent] = []
    async with running(client("step_s=0.02")) as engine:
        async with engine.generate([one]) as generation:
            async for event in generation:
                events.append(event)
                if len(events) in (2, 7):
                    kill_engine(engine)
        assert engine.status().restarts == 2
    assert [token for event in events for token in event.tokens] == alone(one)[:-1]
