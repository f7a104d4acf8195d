"""Thoughts in front of constrained answers, on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from openai_cpu_server.contract.messages import EngineOptions, FinishReason
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Sampling, Thinking
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.constrained import ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.grammar.constraints import compile_grammar, grammar_tokenizer
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.llama.driver import GREEDY
from tests.llama.test_constraints import LETTERS, OBJECT, asked, byte, run_one, token_of
from tests.structured.making import gbnf_to_lark

END = "</think>"
DIGIT = gbnf_to_lark('root ::= [0-9]{2} "!"')


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Iterator[LlamaBackend]:
    options = EngineOptions(model_path=str(tiny), kv_tokens=8192, max_seqs=16, prefill_tokens=512, threads=1)
    backend = LlamaBackend.load(options, lambda fraction: None)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def words(vocabulary: Vocabulary) -> ModelTokens:
    return ModelTokens(vocabulary, grammar_tokenizer(vocabulary))


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
    backend: LlamaBackend, closing: tuple[int, ...], budget: int
) -> None:
    found = run_one(backend, thinking("b", OBJECT, closing, budget=budget))
    assert found.reason is FinishReason.STOP
    begun = found.tokens.index(closing[0])
    assert found.tokens[begun : begun + len(closing)] == closing
    assert budget <= begun <= budget + 3
    assert 1 <= json.loads(found.text.partition(END)[2])["rating"] <= 5


def test_a_free_answer_goes_on_behind_the_thoughts(backend: LlamaBackend, closing: tuple[int, ...]) -> None:
    found = run_one(backend, thinking("f", None, closing, max_tokens=80))
    _, _, answer = found.text.partition("Enough." + END)
    assert answer
    free = thinking("f", None, closing, budget=None, max_tokens=80)
    plain = msgspec.structs.replace(free, constraint=None)
    assert run_one(backend, free).tokens == run_one(backend, plain).tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, temperature=1.5)])
@pytest.mark.parametrize("grammar", [OBJECT, None])
def test_an_output_goes_on_wherever_it_was_left(
    backend: LlamaBackend, closing: tuple[int, ...], sampling: Sampling, grammar: str | None
) -> None:
    one = thinking("resume", grammar, closing, sampling, max_tokens=75 if grammar is None else 300)
    whole = run_one(backend, one)
    for end in range(0, min(len(whole.tokens), 60), 5):
        rest = run_one(backend, one, told=whole.tokens[:end])
        assert whole.tokens[:end] + rest.tokens == whole.tokens


def test_scored_outputs_are_the_same(backend: LlamaBackend, closing: tuple[int, ...]) -> None:
    burst = thinking("s", OBJECT, closing)
    single = msgspec.structs.replace(burst, top_logprobs=2)
    assert run_one(backend, burst).tokens == run_one(backend, single).tokens


def follow(words: ModelTokens, constraint: Constraint) -> ConstrainedOutput:
    grammar = constraint.grammar
    matcher = compile_grammar(grammar, words.tokenizer) if grammar is not None else None
    return ConstrainedOutput(constraint, matcher, words)


def spell(output: ConstrainedOutput, text: str) -> None:
    for char in text:
        output.accept(byte(char))


def test_a_trigger_within_the_thoughts_is_none(words: ModelTokens) -> None:
    constraint = Constraint(grammar=DIGIT, triggers=("<c>",), thinking=Thinking(end=END))
    output = follow(words, constraint)
    spell(output, "<c>" + END + "a")
    assert output.allowed() is None
    spell(output, "<c>")
    assert output.allowed() is not None


def test_a_trigger_may_follow_the_thoughts_at_once(words: ModelTokens) -> None:
    output = follow(words, Constraint(grammar=DIGIT, triggers=("<c>",), thinking=Thinking(end=END)))
    spell(output, END + "<c>")
    assert output.allowed() is not None


def test_an_answer_without_thoughts_may_begin_with_a_trigger(words: ModelTokens) -> None:
    thoughts = Thinking(begin="<think>", end=END)
    output = follow(words, Constraint(grammar=DIGIT, triggers=("<c>",), thinking=thoughts))
    spell(output, "<c>")
    assert output.allowed() is not None


def test_the_end_may_not_come_before_an_answer_that_must_be_there(words: ModelTokens) -> None:
    end = min(words.ends)
    assert not follow(words, Constraint(grammar=DIGIT, thinking=Thinking(end=END))).takes(end)
    assert follow(words, Constraint(thinking=Thinking(end=END))).takes(end)


def test_a_token_that_ends_the_thoughts_may_bring_white_space_only(
    words: ModelTokens, vocabulary: Vocabulary
) -> None:
    """The mark is one that a token of several letters completes."""
    at = token_of(vocabulary, b"at")
    for mark, takes in (("ra", False), ("rat", True)):
        output = follow(words, Constraint(grammar=DIGIT, thinking=Thinking(end=mark)))
        output.accept(byte("r"))
        assert output.takes(at) is takes


def test_the_opening_follows_the_thoughts(words: ModelTokens) -> None:
    opening = (byte("\n"), byte("x"))
    output = follow(words, Constraint(grammar=DIGIT, opening=opening, thinking=Thinking(end=END)))
    spell(output, "so" + END)
    assert output.take_forced() == opening
    allowed = output.allowed()
    assert allowed is not None
    assert all(words.shown(int(token)).isdigit() for token in np.flatnonzero(allowed))


def test_thoughts_that_must_come_are_opened(words: ModelTokens) -> None:
    opening = tuple(byte(char) for char in "<think>")
    thoughts = Thinking(begin="<think>", end=END, opening=opening, budget=1, closing=tuple(map(byte, END)))
    output = follow(words, Constraint(grammar=DIGIT, thinking=thoughts))
    assert output.take_forced() == opening
    assert not output.is_forced
    output.accept(byte("a"))
    assert output.take_forced() == thoughts.closing
    assert output.allowed() is not None


def test_a_draft_may_say_anything_in_the_thoughts(words: ModelTokens) -> None:
    output = follow(words, Constraint(grammar=DIGIT, thinking=Thinking(end=END)))
    assert output.num_allowed([byte("a")] * 4) == 4


@pytest.mark.parametrize(
    ("thoughts", "message"),
    [
        (Thinking(begin="<think>", end=END), "may be there or not"),
        (Thinking(end=END, budget=0, closing=(byte("x"),)), "cannot end its thoughts"),
    ],
)
def test_what_nobody_can_carry_out_fails(words: ModelTokens, thoughts: Thinking, message: str) -> None:
    with pytest.raises(ConstraintFailed, match=message):
        follow(words, Constraint(grammar=DIGIT, thinking=thoughts))
