"""Grammars on the tiny model: outputs fit their grammar, whatever the logits prefer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest

from openai_cpu_server.contract.messages import EngineOptions, Experiment, FinishReason, TokenEvent
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Sampling, Thinking
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.compile import MOST_FORCED, compile_grammar
from openai_cpu_server.llama.grammar.constraints import CompiledGrammars, ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampler import Sampler, Scratch
from tests.llama.driver import GREEDY, answers, execute_and_interrupt, loaded
from tests.structured.making import gbnf_to_lark, schema_to_lark

LETTERS = gbnf_to_lark("root ::= [a-z]{3,8}")
OBJECT = schema_to_lark(
    {
        "type": "object",
        "properties": {
            "rating": {"type": "integer", "minimum": 1, "maximum": 5},
            "reasons": {"type": "array", "items": {"enum": ["price", "quality", "none"]}, "maxItems": 3},
        },
        "required": ["rating", "reasons"],
        "additionalProperties": False,
    }
)
AMBIGUOUS = gbnf_to_lark('root ::= x\nx ::= "" | [ab] x [ab] x')  # takes ever more time to parse
VERY_AMBIGUOUS = gbnf_to_lark("root ::= s\ns ::= [a-z] s [a-z] s | [a-z] s [a-z] s [a-z] s | [a-z] s | [a-z]")
LONG = gbnf_to_lark("root ::= [a-z]{200}")


def constrained_request(
    name: str, grammar: str, sampling: Sampling = GREEDY, **more: object
) -> GenerationRequest:
    constraint = Constraint(grammar=grammar, **more.pop("constraint", {}))
    prompt = tuple(3 + byte for byte in name.encode())
    base = GenerationRequest(id=name, tokens=prompt, max_tokens=300, sampling=sampling, constraint=constraint)
    return msgspec.structs.replace(base, **more)


OPTIONS = EngineOptions(model_path="", experiment=Experiment(tile_filling=False))


@pytest.fixture(scope="module")
def backend(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny, kv_tokens=8192, max_seqs=16, prefill_tokens=512, threads=1) as backend:
        yield backend


def run(backend: LlamaBackend, one: GenerationRequest, output: Sequence[int] = ()) -> TokenEvent:
    return answers(backend, OPTIONS, one, output=output)[one.id]


def schemas() -> dict[str, dict[str, object]]:
    text = {"type": "string", "maxLength": 12}
    kinds = [
        text,
        {"type": "integer", "minimum": -5, "maximum": 500},
        {"type": "boolean"},
        {"enum": ["red", "green", None, 7]},
        {"type": "array", "items": text, "minItems": 1, "maxItems": 3},
        {"type": "string", "format": "date"},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,4}$"},
        {"anyOf": [{"const": "x"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    ]
    return {
        f"schema{i}": {
            "type": "object",
            "properties": {f"first_{i}": kinds[i % 8], "the second": kinds[(3 * i + i // 8) % 8]},
            "required": [f"first_{i}"] if i % 2 else [f"first_{i}", "the second"],
            "additionalProperties": False,
        }
        for i in range(16)
    }


def test_sixteen_hot_sequences_with_a_schema_each_are_all_valid(backend: LlamaBackend) -> None:
    found = {}
    for seed in range(2):
        hot = Sampling(seed=seed, temperature=1.5)
        found = answers(
            backend, OPTIONS, *(constrained_request(n, schema_to_lark(s), hot) for n, s in schemas().items())
        )
        for name, schema in schemas().items():
            assert found[name].finish.reason is FinishReason.STOP
            jsonschema.validate(json.loads(found[name].text), schema)
    assert len({one.text for one in found.values()}) == 16


@pytest.mark.parametrize("seed", range(4))
def test_the_mask_equals_the_tokens_that_the_grammar_accepts(words: ModelTokens, seed: int) -> None:
    rng = random.Random(seed)
    matcher = compile_grammar(OBJECT, words.tokenizer)
    output = ConstrainedOutput(Constraint(grammar=OBJECT), matcher.deep_copy(), words)
    for _ in range(40):
        forced = output.take_forced()
        matcher.consume_tokens(list(forced))
        if words.end in forced:
            break
        allowed = output.allowed()
        takes = [bool(matcher.validate_tokens([token])) for token in range(words.size)]
        assert allowed.tolist() == takes
        token = rng.choice(np.flatnonzero(allowed).tolist())
        output.accept(token)
        matcher.consume_token(token)
        if token in words.ends:
            break


def test_forced_tokens_equal_those_sampled_one_by_one(backend: LlamaBackend) -> None:
    burst, single = constrained_request("a", OBJECT), constrained_request("a", OBJECT, top_logprobs=2)
    found = run(backend, burst), run(backend, single)
    assert found[0].tokens == found[1].tokens
    assert found[0].text == found[1].text
    assert found[0].finish.output_tokens == found[1].finish.output_tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, temperature=1.5)])
@pytest.mark.parametrize("constraint", [{}, {"opening": (4, 70, 71), "triggers": ("CD",)}])
def test_an_output_is_resumed(
    backend: LlamaBackend, sampling: Sampling, constraint: dict[str, object]
) -> None:
    one = constrained_request("resume", OBJECT, sampling, constraint=constraint)
    whole = run(backend, one)
    assert whole.finish.reason is FinishReason.STOP
    for end in range(0, len(whole.tokens) + 1, 2):
        rest = run(backend, one, output=whole.tokens[:end])
        assert whole.tokens[:end] + rest.tokens == whole.tokens
        assert rest.finish.output_tokens == whole.finish.output_tokens


UNIQUE = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "string", "pattern": "^[ab]+$"},
              "minItems": 5, "maxItems": 5, "uniqueItems": True},
    "minItems": 2,
    "maxItems": 2,
}  # fmt: skip


SWITCH = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[ab]{1,2}$"}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schema", [UNIQUE, {"items": SWITCH, "minItems": 6, "maxItems": 9}])
def test_items_of_a_list_differ_also_in_an_output_that_is_resumed(
    backend: LlamaBackend, seed: int, schema: dict[str, object]
) -> None:
    schema = {"type": "array", "uniqueItems": schema is not UNIQUE, **schema}
    sampling = Sampling(seed=seed, temperature=1.5)
    one = constrained_request("unique", schema_to_lark(schema), sampling)
    whole = run(backend, one)
    assert whole.finish.reason is FinishReason.STOP
    jsonschema.validate(json.loads(whole.text), schema)
    for end in range(0, len(whole.tokens) + 1, 5):
        assert whole.tokens[:end] + run(backend, one, output=whole.tokens[:end]).tokens == whole.tokens


def test_a_token_that_repeats_a_string_of_a_list_is_not_taken(words: ModelTokens) -> None:
    grammar = schema_to_lark(UNIQUE)
    output = ConstrainedOutput(Constraint(grammar=grammar), compile_grammar(grammar, words.tokenizer), words)
    taken = []
    for text in ['[["', "a", '"', ',"', "b", '"', ',"', "a", '"']:
        for token in words.spell(text.encode()) or ():
            if not output.is_forced:
                taken.append(output.takes(token))
                if taken[-1]:
                    output.accept(token)
            else:
                assert output.take_one_forced() == token
    assert taken.pop() is False
    assert all(taken)
    assert output.allowed().any()


def test_the_grammar_begins_behind_the_trigger(backend: LlamaBackend) -> None:
    free = run(
        backend, msgspec.structs.replace(constrained_request("t", LETTERS, max_tokens=60), constraint=None)
    )
    trigger = next(free.text[i : i + 3] for i in range(9, 40) if free.text[i : i + 3].isascii())
    before = free.text[: free.text.index(trigger) + 3]
    one = constrained_request("t", OBJECT, constraint={"triggers": (trigger, "never seen")})
    found = run(backend, one)
    assert found.finish.reason is FinishReason.STOP
    assert found.text.startswith(before)
    assert 1 <= json.loads(found.text[len(before) :])["rating"] <= 5
    for end in range(1, len(found.tokens), 3):
        assert found.tokens[:end] + run(backend, one, output=found.tokens[:end]).tokens == found.tokens


def make_output(words: ModelTokens, grammar: str | None, **parts: object) -> ConstrainedOutput:
    matcher = None if grammar is None else compile_grammar(grammar, words.tokenizer)
    return ConstrainedOutput(Constraint(grammar=grammar, **parts), matcher, words)


def byte(char: str) -> int:
    return 3 + ord(char)


def token_of(vocabulary: Vocabulary, text: bytes) -> int:
    return next(t for t in range(vocabulary.vocab_size) if vocabulary.piece(t) == text)


def test_a_trigger_may_span_tokens_and_be_a_control_token(words: ModelTokens) -> None:
    for trigger, tokens in (("ab<s>c", [byte("a"), byte("b"), 1, byte("c")]), ("<s>", [1])):
        output = make_output(words, gbnf_to_lark('root ::= "x" [0-9]'), triggers=("zz", trigger))
        for token in (byte("a"), byte("c"), *tokens[:-1]):
            output.accept(token)
            assert output.allowed() is None
            assert not output.is_forced
        output.accept(tokens[-1])
        assert [words.text_of(token) for token in output.take_forced()] == [b"x"]


def test_the_rest_of_a_triggers_token_is_in_the_grammar(words: ModelTokens, vocabulary: Vocabulary) -> None:
    ratings = token_of(vocabulary, b"at")
    for letter in "xt":
        output = make_output(words, gbnf_to_lark(f'root ::= "{letter}" [0-9]'), triggers=("ra",))
        assert output.takes(ratings)
        output.accept(byte("r"))
        assert output.takes(ratings) == (letter == "t")
        assert output.takes(byte("a"))
    output.accept(ratings)
    assert {vocabulary.piece(t) for t in np.flatnonzero(output.allowed())} == {b"%d" % i for i in range(10)}


def test_a_token_that_breaks_the_grammar_is_not_chosen(backend: LlamaBackend, vocabulary: Vocabulary) -> None:
    at = token_of(vocabulary, b"at")
    hot = msgspec.structs.replace(GREEDY, logit_bias={at: 100.0})
    bang = gbnf_to_lark('root ::= "!"')
    found = run(backend, constrained_request("t", bang, hot, constraint={"triggers": ("a",)}, max_tokens=9))
    assert at not in found.tokens


def test_the_end_comes_only_when_the_grammar_is_complete(backend: LlamaBackend) -> None:
    ends = backend.info.end_tokens
    for end in ends:
        eager = msgspec.structs.replace(GREEDY, logit_bias={end: 100.0})
        found = run(backend, constrained_request("e", LETTERS, eager))
        assert found.finish.reason is FinishReason.STOP
        assert len(found.text) in range(3, 9)
    never = msgspec.structs.replace(GREEDY, ignore_eos=True)
    found = run(backend, constrained_request("e", LETTERS, never))
    assert (found.finish.reason, len(found.text)) == (FinishReason.STOP, 8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_grammar_wins_over_parameters_that_forbid_all_it_allows(temperature: float) -> None:
    banned = {4: -np.inf, 5: -np.inf}
    sampling = Sampling(seed=1, temperature=temperature, logit_bias=banned, ignore_eos=True)
    sampler = Sampler(
        Open(0, sampling, (1,)), Scratch(8), vocab_size=8, end_tokens=frozenset({2}), piece=b"%d".__mod__
    )
    logits = np.linspace(1, 0, 8, dtype=np.float32)
    both = {4, 5} if temperature else {4}
    for allowed, best in (([4], {4}), ([2], {2}), ([4, 6], {6}), ([4, 5], both)):
        assert sampler.choose(logits, np.isin(np.arange(8), allowed)) in best
    logits[5] = -np.inf
    assert sampler.choose(logits, np.arange(8) == 5) == 5


def test_an_interrupted_step_leaves_the_constraint_where_it_was(backend: LlamaBackend) -> None:
    prompt = tuple(range(5, 400))
    constraint = Constraint(grammar=LETTERS)
    samples = []
    for interrupts in (False, True):
        backend.execute(Step(verbs=(Open(0, GREEDY, prompt, (), None, constraint),)))
        step = Step(spans=(Span(0, 0, prompt, True),))
        if interrupts:
            assert execute_and_interrupt(backend, step).interrupted
        samples.append(backend.execute(step).samples[0])
        backend.execute(Step(verbs=(Close(0),)))
    assert samples[0] == samples[1]


_RULES = [f'r{i} ::= "+" r{i} | "-" r{i} | "*" r{i} | "/" r{i} | "!" r{i} | "v{i}"' for i in range(1_800)]
WIDE = gbnf_to_lark("\n".join([f"root ::= [a-z] ({' | '.join(f'r{i}' for i in range(1_800))})", *_RULES]))


@pytest.mark.parametrize(
    ("grammar", "triggers", "why"),
    [
        *((grammar, (), "") for grammar in ("start: missing", "}{", "", 'start: "a', "root ::= [a-z]")),
        (LETTERS, ("",), ""),
        (WIDE, (), "too complex here."),
    ],
    ids=["undefined", "no grammar", "empty", "open", "GBNF", "an empty trigger", "becomes too complex"],
)
def test_a_wrong_constraint_fails_alone(
    backend: LlamaBackend, grammar: str, triggers: tuple[str, ...], why: str
) -> None:
    found = answers(
        backend,
        OPTIONS,
        constrained_request("bad", grammar, constraint={"triggers": triggers}),
        constrained_request("good", LETTERS),
    )
    assert found["bad"].finish.reason is FinishReason.ERROR
    assert found["good"].finish.reason is FinishReason.STOP
    assert found["bad"].finish.error
    assert why in found["bad"].finish.error


def test_a_grammar_that_takes_too_much_time_fails(words: ModelTokens) -> None:
    matcher = compile_grammar(AMBIGUOUS, words.tokenizer)
    output = ConstrainedOutput(Constraint(grammar=AMBIGUOUS), matcher, words, patience_s=0.1)
    with pytest.raises(ConstraintFailed, match="too much time"):
        output.replay([byte("a")] * 3000)


def test_a_slow_grammar_beside_others_has_the_output_that_it_has_alone(backend: LlamaBackend) -> None:
    slow = constrained_request("slow", VERY_AMBIGUOUS, max_tokens=40)
    others = [constrained_request(name, LONG, max_tokens=120) for name in ("a", "b")]
    alone = {one.id: run(backend, one).tokens for one in (slow, *others)}
    together = answers(backend, OPTIONS, slow, *others)
    assert {name: event.tokens for name, event in together.items()} == alone
    assert len(alone["slow"]) == 40


def test_a_slow_mask_makes_the_next_one_begin_early(words: ModelTokens) -> None:
    matcher = compile_grammar(VERY_AMBIGUOUS, words.tokenizer)
    output = ConstrainedOutput(Constraint(grammar=VERY_AMBIGUOUS), matcher, words, patience_s=1000.0)
    assert not output.is_slow
    while not output.is_slow:
        output.accept(byte("a"))
        output.allowed()


@pytest.mark.parametrize("begin", ["", "[a-z] "])
def test_a_long_run_that_is_forced_is_read_in_parts(words: ModelTokens, begin: str) -> None:
    grammar = gbnf_to_lark(f'root ::= {begin}r{{8000}}\nr ::= "1,"')
    output = ConstrainedOutput(Constraint(grammar=grammar), compile_grammar(grammar, words.tokenizer), words)
    if begin:
        output.accept(byte("a"))
    parts = []
    for _ in range(2):
        parts.append(output.take_forced())
        (only,) = np.flatnonzero(output.allowed()).tolist()
        output.accept(only)
        parts.append((only,))
    assert [len(part) for part in parts] == [MOST_FORCED, 1] * 2
    text = b"".join(words.text_of(token) for part in parts for token in part)
    assert (b"1," * 1000).startswith(text)


def test_nothing_is_forced_where_all_of_it_would_be_very_long(words: ModelTokens) -> None:
    grammar = gbnf_to_lark('root ::= "x" | "y" r{1000000}\nr ::= "1,"')
    output = ConstrainedOutput(Constraint(grammar=grammar), compile_grammar(grammar, words.tokenizer), words)
    for char in "y1,1,":
        assert not output.is_forced
        allowed = output.allowed()
        assert allowed[byte(char)]
        assert not allowed[byte("x")] or char == "y"
        output.accept(byte(char))


def test_compiled_grammars_are_kept_within_bounds(words: ModelTokens) -> None:
    grammars = CompiledGrammars(max_entries=3, max_bytes=100)
    for char in "abcdef":
        grammars.matcher(f'start: "{char}"', words.tokenizer)
    assert len(grammars) == 3
    long = 'start: "' + 85 * "x" + '"'
    grammars.matcher(long, words.tokenizer)
    assert len(grammars) == 1
    grammars.forget(long)
    assert len(grammars) == 0
    for _ in range(2):
        with pytest.raises(ConstraintFailed):
            grammars.matcher("broken", words.tokenizer)


def test_copies_of_a_compiled_grammar_are_apart(words: ModelTokens) -> None:
    grammars = CompiledGrammars()
    first, second = (grammars.matcher(LETTERS, words.tokenizer) for _ in range(2))
    assert first.consume_token(byte("a"))
    assert not first.consume_token(byte("0"))
    assert first.is_error()
    assert second.consume_token(byte("b"))


def test_control_tokens_do_not_match_text_and_any_end_token_may_end_a_grammar(words: ModelTokens) -> None:
    output = make_output(words, gbnf_to_lark('root ::= [<s>|a-z_]{1,8} "!"'))
    allowed = output.allowed()
    assert (allowed[1], allowed[byte("<")]) == (False, True)
    output = make_output(words, LETTERS)
    for _ in range(3):
        output.accept(byte("x"))
    allowed = output.allowed()
    assert len(words.ends) == 2
    assert all(allowed[end] for end in words.ends)


def test_a_failure_that_is_not_the_grammars_is_not_remembered(words: ModelTokens) -> None:
    grammars = CompiledGrammars()
    with pytest.raises(TypeError):
        grammars.matcher(OBJECT, None)
    assert len(grammars) == 0
    assert not grammars.matcher(OBJECT, words.tokenizer).is_error()


# -- thoughts before the answer ---------------------------------------------------------------------

END = "</think>"
DIGIT = gbnf_to_lark('root ::= [0-9]{2} "!"')


@pytest.fixture(scope="module")
def thoughts(vocabulary: Vocabulary) -> Thinking:
    closing = vocabulary.encode("\nEnough." + END, add_special=False, parse_special=True)
    return Thinking(end=END, budget=12, closing=tuple(closing))


def thinking_request(name: str, grammar: str | None, thoughts: Thinking, **more: object) -> GenerationRequest:
    constraint = Constraint(grammar=grammar, thinking=thoughts)
    return msgspec.structs.replace(constrained_request(name, LETTERS), constraint=constraint, **more)


@pytest.mark.parametrize("budget", [0, 1, 40])
def test_the_budget_of_thoughts(backend: LlamaBackend, thoughts: Thinking, budget: int) -> None:
    found = run(backend, thinking_request("b", OBJECT, msgspec.structs.replace(thoughts, budget=budget)))
    assert found.finish.reason is FinishReason.STOP
    start = found.tokens.index(thoughts.closing[0])
    assert found.tokens[start : start + len(thoughts.closing)] == thoughts.closing
    assert budget <= start <= budget + 3
    assert 1 <= json.loads(found.text.partition(END)[2])["rating"] <= 5


def test_a_free_answer_follows_the_thoughts(backend: LlamaBackend, thoughts: Thinking) -> None:
    found = run(backend, thinking_request("f", None, thoughts, max_tokens=80))
    _, _, answer = found.text.partition("Enough." + END)
    assert answer
    free = thinking_request("f", None, msgspec.structs.replace(thoughts, budget=None), max_tokens=80)
    plain = msgspec.structs.replace(free, constraint=None)
    assert run(backend, free).tokens == run(backend, plain).tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, temperature=1.5)])
@pytest.mark.parametrize(("grammar", "length"), [(OBJECT, 300), (None, 75)])
def test_thoughts_are_resumed(
    backend: LlamaBackend, thoughts: Thinking, sampling: Sampling, grammar: str | None, length: int
) -> None:
    one = thinking_request("resume", grammar, thoughts, sampling=sampling, max_tokens=length)
    whole = run(backend, one)
    for end in range(0, min(len(whole.tokens), 60), 5):
        assert whole.tokens[:end] + run(backend, one, output=whole.tokens[:end]).tokens == whole.tokens


def thinking_output(words: ModelTokens, grammar: str | None = DIGIT, **parts: object) -> ConstrainedOutput:
    return make_output(words, grammar, **{"thinking": Thinking(end=END), **parts})


def accept_text(output: ConstrainedOutput, text: str) -> None:
    for char in text:
        output.accept(byte(char))


@pytest.mark.parametrize(
    ("thoughts", "prefix"),
    [
        (Thinking(end=END), "<c>" + END + "a"),
        (Thinking(end=END), END),
        (Thinking(begin="<think>", end=END), ""),
    ],
    ids=["not within thoughts", "right after thoughts", "in an answer without thoughts"],
)
def test_a_trigger_counts_only_outside_thoughts(words: ModelTokens, thoughts: Thinking, prefix: str) -> None:
    output = thinking_output(words, triggers=("<c>",), thinking=thoughts)
    accept_text(output, prefix)
    assert output.allowed() is None
    accept_text(output, "<c>")
    assert output.allowed() is not None


def test_the_end_of_thoughts_may_bring_white_space_only(words: ModelTokens, vocabulary: Vocabulary) -> None:
    at = token_of(vocabulary, b"at")
    for mark, takes in (("ra", False), ("rat", True)):
        output = thinking_output(words, thinking=Thinking(end=mark))
        output.accept(byte("r"))
        assert output.takes(at) is takes


def test_the_opening_follows_the_thoughts(words: ModelTokens) -> None:
    opening = (byte("\n"), byte("x"))
    output = thinking_output(words, opening=opening)
    accept_text(output, "so" + END)
    assert output.take_forced() == opening
    assert all(words.text_of(int(token)).isdigit() for token in np.flatnonzero(output.allowed()))


def test_thoughts_that_must_come_are_opened(words: ModelTokens) -> None:
    opening = tuple(byte(char) for char in "<think>")
    thoughts = Thinking(begin="<think>", end=END, opening=opening, budget=1, closing=tuple(map(byte, END)))
    output = thinking_output(words, thinking=thoughts)
    assert output.take_forced() == opening
    assert not output.is_forced
    output.accept(byte("a"))
    assert output.take_forced() == thoughts.closing
    assert output.allowed() is not None
    assert not thinking_output(words, None, thinking=Thinking(begin="<think>", end=END, budget=0)).is_forced


def test_a_draft_does_not_end_thoughts_before_an_answer_that_must_be(words: ModelTokens) -> None:
    assert thinking_output(words).num_allowed([byte("a")] * 4) == 4
    end = min(words.ends)
    assert not thinking_output(words).takes(end)
    assert thinking_output(words, None).takes(end)


@pytest.mark.parametrize(
    ("thoughts", "message"),
    [
        (Thinking(begin="<think>", end=END), "may be there or not"),
        (Thinking(end=END, budget=0, closing=(byte("x"),)), "cannot end its thoughts"),
    ],
)
def test_thoughts_that_cannot_be_enforced_fail(words: ModelTokens, thoughts: Thinking, message: str) -> None:
    with pytest.raises(ConstraintFailed, match=message):
        thinking_output(words, thinking=thoughts)


def test_a_list_that_needs_more_items_than_differ_fails(backend: LlamaBackend) -> None:
    schema = {"type": "array", "items": SWITCH, "uniqueItems": True, "minItems": 13}
    found = run(
        backend, constrained_request("unique", schema_to_lark(schema), Sampling(seed=1, temperature=1.5))
    )
    assert found.finish.reason is FinishReason.ERROR
