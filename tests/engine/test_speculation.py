"""Drafts in the engine's core with a fake model that mostly quotes. They change only the number of steps."""

from __future__ import annotations

import msgspec
import pytest

from openai_cpu_server.contract.messages import CancelRequest, FinishReason, TokenEvent
from openai_cpu_server.contract.request import Constraint, GenerationRequest
from openai_cpu_server.contract.step import TokenLogprob
from tests.engine.driver import OPTIONS, Engine
from tests.fakes import FAKE_INFO, SPECULATION, FakeBackend, next_token
from tests.scheduler.driver import request

PERIOD = 12
QUOTE = tuple(range(2 + ord("a"), 2 + ord("a") + PERIOD))


def parrot(tokens: list[int]) -> int:
    """Repeat the token of twelve tokens ago, except now and then."""
    own = next_token(tokens)
    return own if own % 7 == 0 else tokens[-PERIOD]


def new_engine(speculation: str, *requests: GenerationRequest, **info: bool) -> Engine:
    backend = FakeBackend(msgspec.structs.replace(FAKE_INFO, **info), choose=parrot)
    engine = Engine(msgspec.structs.replace(OPTIONS, **SPECULATION[speculation]), backend)
    engine.submit(*requests)
    return engine


def run(speculation: str, *requests: GenerationRequest, **info: bool) -> Engine:
    engine = new_engine(speculation, *requests, **info)
    engine.run()
    return engine


def quotation(name: str = "a", output: int = 60, **more: object) -> GenerationRequest:
    return request(name, tokens=QUOTE * 2 + (2 + ord("A"),) + QUOTE, output=output, **more)


def result(engine: Engine, name: str) -> tuple[list[int], str, tuple[TokenLogprob, ...], tuple[object, ...]]:
    whole, finish = engine.whole(name), engine.finish(name)
    figures = (finish.reason, finish.output_tokens, finish.forced_tokens, finish.error)
    return list(whole.tokens), whole.text, whole.logprobs, figures


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"output": 1},
        {"output": 5},
        {"top_logprobs": 2},
        {"prompt_logprobs": True},
        {"stop": ("gh",)},
        {"stop": ("never", "fgA")},
        {"constraint": Constraint(grammar="?" * 40)},
        {"constraint": Constraint(grammar="a??d?fghij" * 4)},
        {"constraint": Constraint(grammar="a??d?fghij" * 4), "top_logprobs": 1},
        {"constraint": Constraint(grammar="ab??efgh??kl???!?")},
        {"constraint": Constraint(grammar="abcdefghijklab??!")},
        {"constraint": Constraint(grammar="?*?*?x*?" * 6)},
    ],
    ids=str,
)
def test_answers_are_the_same_with_and_without_drafts(more: dict[str, object]) -> None:
    requests = [quotation("a", **more), quotation("b"), request("c", prompt=30, **more)]
    plain, drafting = run("off", *requests), run("always", *requests)
    for one in requests:
        assert result(drafting, one.id) == result(plain, one.id)
    assert drafting.backend.cells == {}
    assert drafting.last.kv.pool_blocks_used == 0


def test_right_drafts_save_steps_and_are_counted() -> None:
    plain, drafting = run("off", quotation()), run("always", quotation())
    finish = drafting.finish()
    assert 20 < finish.accepted_tokens < finish.drafted_tokens
    assert (plain.finish().drafted_tokens, plain.finish().accepted_tokens) == (0, 0)
    assert drafting.backend.num_computed == plain.backend.num_computed + (
        finish.drafted_tokens - finish.accepted_tokens
    )
    assert len([e for e in drafting.events if e.tokens]) < len([e for e in plain.events if e.tokens]) / 2


def test_figures_of_steps_add_up() -> None:
    engine = run("always", quotation())
    figures, finish = engine.all_figures, engine.finish()
    assert sum(f.drafted for f in figures) == finish.drafted_tokens
    assert sum(f.accepted for f in figures) == finish.accepted_tokens
    assert sum(f.sampled for f in figures) == finish.output_tokens == 60
    assert sum(f.tokens for f in figures) == engine.backend.num_computed


def test_a_memory_that_cannot_be_trimmed_gets_no_drafts() -> None:
    engine = run("always", quotation(), max_draft=0)
    assert result(engine, "a") == result(run("off", quotation()), "a")
    assert engine.finish().drafted_tokens == 0


def test_drafts_keep_to_the_length_of_the_option() -> None:
    options = msgspec.structs.replace(OPTIONS, **SPECULATION["always"], draft_max=3)
    engine = Engine(options, FakeBackend(choose=parrot))
    engine.serve(quotation())
    assert max(len(event.tokens) for event in engine.events) == 4


def test_cancelling_between_drafts_frees_everything() -> None:
    engine = new_engine("always", quotation("a"), quotation("b"))
    for _ in range(4):
        engine.step()
    for _ in range(2):
        engine.core.handle(CancelRequest("a"))
    engine.run()
    assert engine.finish().reason is FinishReason.CANCELLED
    assert result(engine, "b") == result(run("off", quotation("b")), "b")
    assert engine.backend.cells == {}


@pytest.mark.parametrize("num_sent", [*range(0, 60, 7), 60])
def test_an_output_continues_where_a_dead_engine_left_it(num_sent: int) -> None:
    whole, *_ = result(run("off", quotation()), "a")
    engine = new_engine("always")
    engine.serve(quotation(), output=whole[:num_sent])
    assert result(engine, "a")[0] == whole[num_sent:]
    assert engine.finish().output_tokens == 60


def test_a_failure_comes_with_the_tokens_before_it() -> None:
    """Some of the constraints fail in the middle of a draft that is right so far."""
    last: list[TokenEvent] = []
    for length in range(10, 20):
        one = quotation(constraint=Constraint(grammar="abc" + "?" * length + "!"))
        engine = run("always", one)
        assert result(engine, "a") == result(run("off", one), "a")
        assert engine.finish().reason is FinishReason.ERROR
        last += [event for event in engine.events if event.finish]
    assert any(event.tokens for event in last)
