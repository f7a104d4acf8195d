"""Grammars on the tiny model: whatever it would like to say, only what fits comes out."""

from __future__ import annotations

import json
import random

import jsonschema
import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher

from openai_cpu_server.contract.messages import EngineOptions, FinishReason, TokenEvent
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Sampling
from openai_cpu_server.contract.scheduling import Experiment
from openai_cpu_server.contract.step import Close, Open, Span, Step
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.grammar.constrained import MOST_FORCED, ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.grammar.constraints import CompiledGrammars, compile_grammar
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.sampling.sampler import Sampler, Scratch
from tests.llama.driver import GREEDY, answers, execute_and_press
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
AMBIGUOUS = gbnf_to_lark('root ::= x\nx ::= "" | [ab] x [ab] x')
"""Takes ever more time to parse."""


def asked(name: str, grammar: str, sampling: Sampling = GREEDY, **more: object) -> GenerationRequest:
    constraint = Constraint(grammar=grammar, **more.pop("constraint", {}))
    prompt = tuple(3 + byte for byte in name.encode())
    base = GenerationRequest(id=name, tokens=prompt, max_tokens=300, sampling=sampling, constraint=constraint)
    return msgspec.structs.replace(base, **more)


class Outcome:
    """What came of one request."""

    def __init__(self, event: TokenEvent) -> None:
        assert event.finish is not None
        self.text, self.tokens, self.finish = event.text, event.tokens, event.finish
        self.reason = event.finish.reason


def run(roomy: LlamaBackend, *requests: GenerationRequest, told: tuple[int, ...] = ()) -> dict[str, Outcome]:
    """To their ends, through the engine's core. `told`: output that an earlier engine has told already."""
    options = EngineOptions(model_path="", experiment=Experiment(tile_filling=False))
    return {name: Outcome(event) for name, event in answers(roomy, options, *requests, told=told).items()}


def run_one(roomy: LlamaBackend, one: GenerationRequest, told: tuple[int, ...] = ()) -> Outcome:
    return run(roomy, one, told=told)[one.id]


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


def test_sixteen_hot_sequences_with_a_schema_each_are_all_valid(roomy: LlamaBackend) -> None:
    found = {}
    for seed in range(2):
        hot = Sampling(seed=seed, temperature=1.5)
        found = run(roomy, *(asked(n, schema_to_lark(s), hot) for n, s in schemas().items()))
        for name, schema in schemas().items():
            assert found[name].reason is FinishReason.STOP
            jsonschema.validate(json.loads(found[name].text), schema)
    assert len({one.text for one in found.values()}) == 16


@pytest.mark.parametrize("seed", range(4))
def test_the_mask_is_what_the_grammar_takes(words: ModelTokens, seed: int) -> None:
    rng = random.Random(seed)
    matcher = compile_grammar(OBJECT, words.tokenizer)
    output = ConstrainedOutput(Constraint(grammar=OBJECT), matcher.deep_copy(), words)
    for _ in range(40):
        forced = output.take_forced()
        matcher.consume_tokens(list(forced))
        if words.end in forced:
            break
        allowed = output.allowed()
        assert allowed is not None
        takes = [bool(matcher.validate_tokens([token])) for token in range(words.size)]
        assert allowed.tolist() == takes
        token = rng.choice(np.flatnonzero(allowed).tolist())
        output.accept(token)
        matcher.consume_token(token)
        if token in words.ends:
            break


def test_forced_tokens_are_those_that_are_sampled_one_by_one(roomy: LlamaBackend) -> None:
    burst, single = asked("a", OBJECT), asked("a", OBJECT, top_logprobs=2)
    found = run_one(roomy, burst), run_one(roomy, single)
    assert found[0].tokens == found[1].tokens
    assert found[0].text == found[1].text
    assert found[0].finish.output_tokens == found[1].finish.output_tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=5, temperature=1.5)])
@pytest.mark.parametrize("constraint", [{}, {"opening": (4, 70, 71), "triggers": ("CD",)}])
def test_an_output_goes_on_wherever_it_was_left(
    roomy: LlamaBackend, sampling: Sampling, constraint: dict[str, object]
) -> None:
    one = asked("resume", OBJECT, sampling, constraint=constraint)
    whole = run_one(roomy, one)
    assert whole.reason is FinishReason.STOP
    for end in range(0, len(whole.tokens) + 1, 2):
        rest = run_one(roomy, one, told=whole.tokens[:end])
        assert whole.tokens[:end] + rest.tokens == whole.tokens
        assert rest.finish.output_tokens == whole.finish.output_tokens


def test_the_opening_comes_first_and_is_shown_where_it_is_asked_for(roomy: LlamaBackend) -> None:
    for shows, start in ((True, "<s>x"), (False, "x")):
        one = asked("o", LETTERS, constraint={"opening": (1, 3 + ord("x"))}, show_control_tokens=shows)
        found = run_one(roomy, one)
        assert found.tokens[:2] == (1, 3 + ord("x"))
        assert found.text.startswith(start)
        assert 3 <= len(found.text) - len(start) <= 8


def test_the_grammar_begins_behind_the_trigger(roomy: LlamaBackend) -> None:
    free = run_one(roomy, msgspec.structs.replace(asked("t", LETTERS, max_tokens=60), constraint=None))
    trigger = next(free.text[i : i + 3] for i in range(9, 40) if free.text[i : i + 3].isascii())
    before = free.text[: free.text.index(trigger) + 3]
    one = asked("t", OBJECT, constraint={"triggers": (trigger, "never seen")})
    found = run_one(roomy, one)
    assert found.reason is FinishReason.STOP
    assert found.text.startswith(before)
    assert 1 <= json.loads(found.text[len(before) :])["rating"] <= 5
    for end in range(1, len(found.tokens), 3):
        rest = run_one(roomy, one, told=found.tokens[:end])
        assert found.tokens[:end] + rest.tokens == found.tokens


def follow(words: ModelTokens, grammar: str, **parts: object) -> ConstrainedOutput:
    matcher = compile_grammar(grammar, words.tokenizer)
    return ConstrainedOutput(Constraint(grammar=grammar, **parts), matcher, words)


def byte(char: str) -> int:
    return 3 + ord(char)


def token_of(vocabulary: Vocabulary, text: bytes) -> int:
    return next(t for t in range(vocabulary.vocab_size) if vocabulary.piece(t) == text)


def test_a_trigger_may_span_tokens_and_be_a_control_token(words: ModelTokens) -> None:
    for trigger, tokens in (("ab<s>c", [byte("a"), byte("b"), 1, byte("c")]), ("<s>", [1])):
        output = follow(words, gbnf_to_lark('root ::= "x" [0-9]'), triggers=("zz", trigger))
        for token in (byte("a"), byte("c"), *tokens[:-1]):
            output.accept(token)
            assert output.allowed() is None
            assert not output.is_forced
        output.accept(tokens[-1])
        assert [words.shown(token) for token in output.take_forced()] == [b"x"]


def test_what_stands_behind_the_trigger_in_its_token_belongs_to_the_grammar(
    words: ModelTokens, vocabulary: Vocabulary
) -> None:
    ratings = token_of(vocabulary, b"at")
    for grammar, takes in (
        (gbnf_to_lark('root ::= "t" [0-9]'), True),
        (gbnf_to_lark('root ::= "x" [0-9]'), False),
    ):
        output = follow(words, grammar, triggers=("ra",))
        assert output.takes(ratings)
        output.accept(byte("r"))
        assert output.takes(ratings) == takes
        assert output.takes(byte("a"))
    output = follow(words, gbnf_to_lark('root ::= "t" [0-9]'), triggers=("ra",))
    output.accept(byte("r"))
    output.accept(ratings)
    allowed = output.allowed()
    assert allowed is not None
    assert {vocabulary.piece(t) for t in np.flatnonzero(allowed)} == {b"%d" % i for i in range(10)}


def test_a_token_that_goes_on_against_the_grammar_behind_a_trigger_is_not_chosen(
    roomy: LlamaBackend, vocabulary: Vocabulary
) -> None:
    at = token_of(vocabulary, b"at")
    hot = msgspec.structs.replace(GREEDY, logit_bias={at: 100.0})
    bang = gbnf_to_lark('root ::= "!"')
    found = run_one(roomy, asked("t", bang, hot, constraint={"triggers": ("a",)}, max_tokens=9))
    assert at not in found.tokens


def test_the_end_comes_only_when_the_grammar_is_complete(roomy: LlamaBackend) -> None:
    ends = roomy.info.end_tokens
    for end in ends:
        eager = msgspec.structs.replace(GREEDY, logit_bias={end: 100.0})
        found = run_one(roomy, asked("e", LETTERS, eager))
        assert found.reason is FinishReason.STOP
        assert len(found.text) in range(3, 9)
    never = msgspec.structs.replace(GREEDY, ignore_eos=True)
    found = run_one(roomy, asked("e", LETTERS, never))
    assert (found.reason, len(found.text)) == (FinishReason.STOP, 8)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("parameters", [{}, {"top_k": 1, "min_p": 0.5}, {"repeat_penalty": 1.9}])
def test_no_parameter_allows_what_the_grammar_forbids(
    roomy: LlamaBackend, temperature: float, parameters: dict[str, object]
) -> None:
    bias = {byte("Z"): 100.0, **{byte(c): -100.0 for c in "abcdefghijklmnopqrstuvwxyz"}}
    sampling = Sampling(seed=1, temperature=temperature, logit_bias=bias, presence_penalty=-2, **parameters)
    found = run_one(roomy, asked("p", LETTERS, sampling))
    assert found.text.islower()
    assert 3 <= len(found.text) <= 8


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


def test_an_interrupted_step_leaves_the_constraint_where_it_was(roomy: LlamaBackend) -> None:
    prompt = tuple(range(5, 400))
    constraint = Constraint(grammar=LETTERS)
    samples = []
    for interrupts in (False, True):
        roomy.execute(Step(verbs=(Open(0, GREEDY, prompt, (), None, constraint),)))
        step = Step(spans=(Span(0, 0, prompt, True),))
        if interrupts:
            assert execute_and_press(roomy, step).interrupted
        samples.append(roomy.execute(step).samples[0])
        roomy.execute(Step(verbs=(Close(0),)))
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
def test_a_constraint_that_cannot_be_fails_only_its_own_request(
    roomy: LlamaBackend, grammar: str, triggers: tuple[str, ...], why: str
) -> None:
    found = run(roomy, asked("bad", grammar, constraint={"triggers": triggers}), asked("good", LETTERS))
    assert found["bad"].reason is FinishReason.ERROR
    assert found["good"].reason is FinishReason.STOP
    assert found["bad"].finish.error
    assert why in found["bad"].finish.error


def test_a_grammar_that_takes_too_much_time_fails(words: ModelTokens) -> None:
    matcher = compile_grammar(AMBIGUOUS, words.tokenizer)
    output = ConstrainedOutput(Constraint(grammar=AMBIGUOUS), matcher, words, patience_s=0.1)
    with pytest.raises(ConstraintFailed, match="too much time"):
        output.replay([byte("a")] * 3000)


@pytest.mark.parametrize("begin", ["", "[a-z] "])
def test_a_long_run_that_is_forced_is_read_in_parts(words: ModelTokens, begin: str) -> None:
    grammar = gbnf_to_lark(f'root ::= {begin}r{{8000}}\nr ::= "1,"')
    output = ConstrainedOutput(Constraint(grammar=grammar), compile_grammar(grammar, words.tokenizer), words)
    if begin:
        output.accept(byte("a"))
    parts = []
    for _ in range(2):
        parts.append(output.take_forced())
        allowed = output.allowed()
        assert allowed is not None
        (only,) = np.flatnonzero(allowed).tolist()
        output.accept(only)
        parts.append((only,))
    assert [len(part) for part in parts] == [MOST_FORCED, 1] * 2
    text = b"".join(words.shown(token) for part in parts for token in part)
    assert (b"1," * 1000).startswith(text)


def test_nothing_is_forced_where_all_of_it_would_be_very_long(words: ModelTokens) -> None:
    grammar = gbnf_to_lark('root ::= "x" | "y" r{1000000}\nr ::= "1,"')
    output = ConstrainedOutput(Constraint(grammar=grammar), compile_grammar(grammar, words.tokenizer), words)
    for char in "y1,1,":
        assert not output.is_forced
        allowed = output.allowed()
        assert allowed is not None
        assert allowed[byte(char)]
        assert not allowed[byte("x")] or char == "y"
        output.accept(byte(char))


def test_compiled_grammars_are_kept_within_bounds(words: ModelTokens) -> None:
    grammars = CompiledGrammars(max_entries=3, max_bytes=100)
    for char in "abcdef":
        assert isinstance(grammars.matcher(f'start: "{char}"', words.tokenizer), LLMatcher)
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


def test_control_tokens_are_no_text_for_a_grammar_and_any_end_token_may_end_it(words: ModelTokens) -> None:
    output = follow(words, gbnf_to_lark('root ::= [<s>|a-z_]{1,8} "!"'))
    allowed = output.allowed()
    assert allowed is not None
    assert (allowed[1], allowed[byte("<")]) == (False, True)
    output = follow(words, LETTERS)
    for _ in range(3):
        output.accept(byte("x"))
    allowed = output.allowed()
    assert allowed is not None
    assert len(words.ends) == 2
    assert all(allowed[end] for end in words.ends)


def test_a_failure_that_is_not_the_grammars_is_not_remembered(words: ModelTokens) -> None:
    grammars = CompiledGrammars()
    with pytest.raises(TypeError):
        grammars.matcher(OBJECT, None)
    assert len(grammars) == 0
    assert not grammars.matcher(OBJECT, words.tokenizer).is_error()
