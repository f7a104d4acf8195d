"""Thoughts in front of constrained answers, on the tiny model."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from openai_cpu_server.contract.messages import FinishReason
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Sampling, Thinking
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.constrained import ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.grammar.constraints import compile_grammar
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import GREEDY
from tests.llama.test_constraints import LETTERS, OBJECT, asked, byte, run_one, token_of
from tests.structured.making import gbnf_to_lark

END = "</think>"
DIGIT = gbnf_to_lark('root ::= [0-9]{2} "!"')


@pytest.fixture(scope="module")
def closing(vocabulary: Vocabulary) -> tuple[int, ...]:
    return tuple(vocabulary.encode("\nEnough." + END, add_special=False, parse_special=True))


def thinking(
    name: str,
    grammar: str | None,
    closing: tuple[int, ...],
    sampling: Sampling = GREEDY,
    *,
    budget: int | None = 12,
    triggers: tuple[str, ...] = (),
    **more: object,
) -> GenerationRequest:
    thoughts = Thinking(end=END, budget=budget, closing=closing)
    constraint = Constraint(grammar=grammar, thinking=thoughts, triggers=triggers)
    return msgspec.structs.replace(asked(name, LETTERS, sampling), constraint=constraint, **more)


@pytest.mark.parametrize("budget", [0, 5, 40])
def test_the_form_begins_when_the_budget_is_used_up(
    roomy: LlamaBackend, closing: tuple[int, ...], budget: int
) -> None:
    found = run_one(roomy, thinking("b", OBJECT, closing, budget=budget))
    assert found.reason is FinishReason.STOP
    begun = found.tokens.index(closing[0])
    assert found.tokens[begun : begun + len(closing)] == closing
    assert budget <= begun <= budget + 3
    assert 1 <= json.loads(found.text.partition(END)[2])["rating"] <= 5


def test_a_free_answer_goes_on_behind_the_thoughts(roomy: LlamaBackend, closing: tuple[int, ...]) -> None:
    found = run_one(roomy, thinking("f", None, closing, max_tokens=80))
    _, _, answer = found.text.partition("Enough." + END)
    assert answer
    free = thinking("f", None, closing, budget=None, max_tokens=80)
    plain = msgspec.structs.replace(free, constraint=None)
    assert run_one(roomy, free).tokens == run_one(roomy, plain).tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, temperature=1.5)])
@pytest.mark.parametrize("grammar", [OBJECT, None])
def test_an_output_goes_on_wherever_it_was_left(
    roomy: LlamaBackend, closing: tuple[int, ...], sampling: Sampling, grammar: str | None
) -> None:
    one = thinking("resume", grammar, closing, sampling, max_tokens=75 if grammar is None else 300)
    whole = run_one(roomy, one)
    for end in range(0, min(len(whole.tokens), 60), 5):
        rest = run_one(roomy, one, told=whole.tokens[:end])
        assert whole.tokens[:end] + rest.tokens == whole.tokens


def follow(words: ModelTokens, grammar: str | None = DIGIT, **parts: object) -> ConstrainedOutput:
    matcher = compile_grammar(grammar, words.tokenizer) if grammar is not None else None
    constraint = Constraint(grammar=grammar, **{"thinking": Thinking(end=END), **parts})
    return ConstrainedOutput(constraint, matcher, words)


def spell(output: ConstrainedOutput, text: str) -> None:
    for char in text:
        output.accept(byte(char))


@pytest.mark.parametrize(
    ("thoughts", "said"),
    [
        (Thinking(end=END), "<c>" + END + "a"),
        (Thinking(end=END), END),
        (Thinking(begin="<think>", end=END), ""),
    ],
    ids=["none within the thoughts", "it may follow them at once", "it may begin an answer without them"],
)
def test_where_a_trigger_is_one(words: ModelTokens, thoughts: Thinking, said: str) -> None:
    output = follow(words, triggers=("<c>",), thinking=thoughts)
    spell(output, said)
    assert output.allowed() is None
    spell(output, "<c>")
    assert output.allowed() is not None


def test_a_token_that_ends_the_thoughts_may_bring_white_space_only(
    words: ModelTokens, vocabulary: Vocabulary
) -> None:
    """The mark is one that a token of several letters completes."""
    at = token_of(vocabulary, b"at")
    for mark, takes in (("ra", False), ("rat", True)):
        output = follow(words, thinking=Thinking(end=mark))
        output.accept(byte("r"))
        assert output.takes(at) is takes


def test_the_opening_follows_the_thoughts(words: ModelTokens) -> None:
    opening = (byte("\n"), byte("x"))
    output = follow(words, opening=opening)
    spell(output, "so" + END)
    assert output.take_forced() == opening
    allowed = output.allowed()
    assert allowed is not None
    assert all(words.shown(int(token)).isdigit() for token in np.flatnonzero(allowed))


def test_thoughts_that_must_come_are_opened(words: ModelTokens) -> None:
    opening = tuple(byte(char) for char in "<think>")
    thoughts = Thinking(begin="<think>", end=END, opening=opening, budget=1, closing=tuple(map(byte, END)))
    output = follow(words, thinking=thoughts)
    assert output.take_forced() == opening
    assert not output.is_forced
    output.accept(byte("a"))
    assert output.take_forced() == thoughts.closing
    assert output.allowed() is not None


def test_a_draft_may_say_anything_in_the_thoughts_but_their_end_before_an_answer_that_must_be(
    words: ModelTokens,
) -> None:
    assert follow(words).num_allowed([byte("a")] * 4) == 4
    end = min(words.ends)
    assert not follow(words).takes(end)
    assert follow(words, None).takes(end)


@pytest.mark.parametrize(
    ("thoughts", "message"),
    [
        (Thinking(begin="<think>", end=END), "may be there or not"),
        (Thinking(end=END, budget=0, closing=(byte("x"),)), "cannot end its thoughts"),
    ],
)
def test_what_nobody_can_carry_out_fails(words: ModelTokens, thoughts: Thinking, message: str) -> None:
    with pytest.raises(ConstraintFailed, match=message):
        follow(words, thinking=thoughts)
