"""Thoughts with a budget in front of answers, through the engine's core and its fake backend."""

from __future__ import annotations

import random

import msgspec
import pytest

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.contract.request import (
    Constraint,
    GenerationRequest,
    OutputMarks,
    OutputPart,
    Thinking,
)
from tests.engine.test_constrained import ending, generate, resumed, shown
from tests.engine.test_core import Engine
from tests.fakes import END_TOKEN
from tests.scheduler.driver import alone, request

END = "</t>"


def spelt(text: str) -> tuple[int, ...]:
    return tuple(byte + 2 for byte in text.encode())


def thinking(
    name: str = "a",
    *,
    budget: int | None = 8,
    grammar: str | None = None,
    output: int = 60,
    begin: str = "",
    opening: str = "",
    **more: object,
) -> GenerationRequest:
    thoughts = Thinking(begin=begin, end=END, budget=budget, closing=spelt("." + END), opening=spelt(opening))
    constraint = Constraint(grammar=grammar, thinking=thoughts)
    return request(name, output=output, constraint=constraint, **more)


@pytest.mark.parametrize("budget", [0, 1, 7, 30])
def test_thoughts_end_when_their_budget_is_used_up(budget: int) -> None:
    tokens = generate(thinking(budget=budget)).told("a")
    assert tuple(tokens[budget : budget + 5]) == spelt("." + END)
    assert len(tokens) == 60


def test_without_a_budget_they_may_go_on_to_the_limit() -> None:
    engine = generate(thinking(budget=None))
    assert END not in shown(engine, "a")
    assert ending(engine) == (FinishReason.LENGTH, 60)


def test_the_limit_of_tokens_also_cuts_what_ends_the_thoughts() -> None:
    engine = generate(thinking(budget=8, output=10))
    assert shown(engine, "a").endswith(".<")
    assert ending(engine) == (FinishReason.LENGTH, 10)


def test_the_answers_form_begins_behind_the_thoughts() -> None:
    engine = generate(thinking(budget=8, grammar='{"?"}'))
    _, _, answer = shown(engine, "a").partition(END)
    assert (answer[:2], answer[3:], len(answer)) == ('{"', '"}', 5)
    assert ending(engine)[0] is FinishReason.STOP


def test_a_model_that_must_think_opens_its_thoughts() -> None:
    text = shown(generate(thinking(begin="<t>", opening="<t>", grammar="yes")), "a")
    assert (text[:3], text[11:]) == ("<t>", "." + END + "yes")


def test_an_output_that_does_not_begin_with_thoughts_has_none() -> None:
    text = shown(generate(thinking(begin="<t>", budget=0)), "a")
    assert END not in text
    assert len(text) == 60


def test_stop_strings_are_for_the_answer_in_a_new_engine_too() -> None:
    text = shown(generate(thinking(budget=20)), "a")
    letter = next(char for char in text[25:] if char in text[:20])
    one = thinking(budget=20, stop=(letter,))
    stopped = generate(one)
    assert shown(stopped, "a") == text[: text.index(letter, 25)]
    whole = stopped.told("a")
    for num_told in range(len(whole)):
        assert resumed(one, whole[:num_told]).told("a") == whole[num_told:]


@pytest.mark.parametrize("begin", ["", "<t>"])
def test_an_output_goes_on_where_a_dead_engine_left_it(begin: str) -> None:
    one = thinking(begin=begin, opening=begin, budget=6, grammar="{?a*b?}")
    whole = alone(one)[:-1]
    for num_told in range(len(whole)):
        engine = resumed(one, whole[:num_told])
        assert engine.told("a") == whole[num_told:]
        assert ending(engine) == (FinishReason.STOP, len(whole) + 1)


def test_thoughts_and_answer_are_told_apart_also_behind_a_crash() -> None:
    marks = OutputMarks(end=END)
    one = msgspec.structs.replace(thinking(budget=6, grammar="{?a*b?}"), marks=marks)
    engine = generate(one)
    whole = parted(engine)
    thoughts, answer = shown(generate(msgspec.structs.replace(one, marks=None)), "a").split(END)
    assert whole == {OutputPart.THINKING: thoughts.strip(), OutputPart.ANSWER: answer.lstrip()}
    assert engine.finish("a") == msgspec.structs.replace(
        generate(msgspec.structs.replace(one, marks=None)).finish("a"),
        thought_tokens=6 + len("." + END),
    )
    tokens = engine.told("a")
    for num_told in range(len(tokens)):
        other = resumed(one, tokens[:num_told])
        rest = parted(other)
        assert all(whole[part].endswith(rest[part]) for part in OutputPart)
        assert other.finish().thought_tokens == 6 + len("." + END)


def parted(engine: Engine) -> dict[OutputPart, str]:
    return {part: "".join(event.text for event in engine.events if event.part is part) for part in OutputPart}


def test_where_log_probabilities_are_asked_for_the_output_is_the_same() -> None:
    free = thinking("a", budget=5, grammar="{?b?}")
    scored = thinking("b", budget=5, grammar="{?b?}", tokens=free.tokens, top_logprobs=0)
    engine = generate(free, scored)
    assert engine.told("a") == engine.told("b")


@pytest.mark.parametrize("seed", range(6))
def test_company_changes_nothing(seed: int) -> None:
    """Requests with and without a form, of several budgets, come while others run."""
    draw = random.Random(seed)
    asked = [
        thinking(
            f"r{i}", budget=draw.choice([None, 0, 3, 9]), grammar=draw.choice([None, "{?a*}"]), output=40
        )
        for i in range(12)
    ]
    engine = Engine()
    for one in asked:
        engine.submit(one)
        for _ in range(draw.randrange(4)):
            engine.step()
    engine.run()
    for one in asked:
        assert engine.told(one.id) == [token for token in alone(one) if token != END_TOKEN]
