"""Drafts in the engine's core, with a fake model that mostly quotes: only the number of steps changes."""

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
    """Says again what it said twelve tokens ago, but for now and then."""
    own = next_token(tokens)
    return own if own % 7 == 0 else tokens[-PERIOD]


def engine(speculation: str, *requests: GenerationRequest, **info: bool) -> Engine:
    backend = FakeBackend(msgspec.structs.replace(FAKE_INFO, **info), choose=parrot)
    made = Engine(msgspec.structs.replace(OPTIONS, **SPECULATION[speculation]), backend)
    made.submit(*requests)
    return made


def ran(speculation: str, *requests: GenerationRequest, **info: bool) -> Engine:
    made = engine(speculation, *requests, **info)
    made.run()
    return made


def quoting(name: str = "a", output: int = 60, **more: object) -> GenerationRequest:
    return request(name, tokens=QUOTE * 2 + (2 + ord("A"),) + QUOTE, output=output, **more)


def told(made: Engine, name: str) -> tuple[list[int], str, tuple[TokenLogprob, ...], tuple[object, ...]]:
    whole, finish = made.whole(name), made.finish(name)
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
def test_answers_are_the_same_with_and_without(more: dict[str, object]) -> None:
    requests = [quoting("a", **more), quoting("b"), request("c", prompt=30, **more)]
    plain, drafting = ran("off", *requests), ran("always", *requests)
    for one in requests:
        assert told(drafting, one.id) == told(plain, one.id)
    assert drafting.backend.cells == {}
    assert drafting.last.kv.pool_blocks_used == 0


def test_right_drafts_save_steps_and_are_counted() -> None:
    plain, drafting = ran("off", quoting()), ran("always", quoting())
    finish = drafting.finish()
    assert 20 < finish.accepted_tokens < finish.drafted_tokens
    assert (plain.finish().drafted_tokens, plain.finish().accepted_tokens) == (0, 0)
    assert drafting.backend.num_computed == plain.backend.num_computed + (
        finish.drafted_tokens - finish.accepted_tokens
    )
    assert len([e for e in drafting.events if e.tokens]) < len([e for e in plain.events if e.tokens]) / 2


def test_figures_of_steps_add_up() -> None:
    made = ran("always", quoting())
    figures, finish = made.all_figures, made.finish()
    assert sum(f.drafted for f in figures) == finish.drafted_tokens
    assert sum(f.accepted for f in figures) == finish.accepted_tokens
    assert sum(f.sampled for f in figures) == finish.output_tokens == 60
    assert sum(f.tokens for f in figures) == made.backend.num_computed


def test_nothing_is_drafted_for_a_memory_that_cannot_be_trimmed() -> None:
    made = ran("always", quoting(), max_draft=0)
    assert told(made, "a") == told(ran("off", quoting()), "a")
    assert made.finish().drafted_tokens == 0


def test_no_draft_is_longer_than_the_option_says() -> None:
    options = msgspec.structs.replace(OPTIONS, **SPECULATION["always"], draft_max=3)
    made = Engine(options, FakeBackend(choose=parrot))
    made.serve(quoting())
    assert max(len(event.tokens) for event in made.events) == 4


def test_cancelling_between_drafts_frees_everything() -> None:
    made = engine("always", quoting("a"), quoting("b"))
    for _ in range(4):
        made.step()
    for _ in range(2):
        made.core.handle(CancelRequest("a"))
    made.run()
    assert made.finish().reason is FinishReason.CANCELLED
    assert told(made, "b") == told(ran("off", quoting("b")), "b")
    assert made.backend.cells == {}


@pytest.mark.parametrize("num_told", [*range(0, 60, 7), 60])
def test_an_output_goes_on_where_a_dead_engine_left_it(num_told: int) -> None:
    whole, *_ = told(ran("off", quoting()), "a")
    made = engine("always")
    made.serve(quoting(), told=whole[:num_told])
    assert told(made, "a")[0] == whole[num_told:]
    assert made.finish().output_tokens == 60


def test_what_failed_is_told_behind_what_came_before() -> None:
    """Of some of these the constraint fails in the middle of a draft that is right so far."""
    last: list[TokenEvent] = []
    for length in range(10, 20):
        one = quoting(constraint=Constraint(grammar="abc" + "?" * length + "!"))
        made = ran("always", one)
        assert told(made, "a") == told(ran("off", one), "a")
        assert made.finish().reason is FinishReason.ERROR
        last += [event for event in made.events if event.finish]
    assert any(event.tokens for event in last)
