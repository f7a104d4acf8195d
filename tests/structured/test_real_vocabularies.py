"""Sentences drawn token by token from real vocabularies are JSON of their schema."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource
from openai_cpu_server.llama.grammar.compile import compile_grammar, grammar_tokenizer, grammar_trial
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.model_source.package import PACKAGED
from openai_cpu_server.structured.compiler import grammar_maker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

TEXTS: list[dict[str, Any]] = [
    {"pattern": r"\S", "maxLength": 10_000},
    {"pattern": r"^(?!\s*$).+", "maxLength": 150},
    {"pattern": "[a-z]", "minLength": 300, "maxLength": 400},
    {"allOf": [{"pattern": r"\d"}, {"pattern": "[A-Z]"}], "maxLength": 255},
    {"not": {"pattern": "town"}, "maxLength": 200},
    {"pattern": r"^(?!\s)(?!.*\s$).+$", "maxLength": 40},
    {"format": "email", "pattern": r"@example\.com$", "maxLength": 254},
    {"format": "date"},
    {"format": "uri", "maxLength": 64},
    {"enum": ["", 'a"b', "é\n", "\u0004"]},
]
NUMBERS: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMaximum": 0},
    {"type": "number", "exclusiveMinimum": -0.9, "exclusiveMaximum": 0},
    {"type": "integer"},
    {"type": "number", "minimum": 0},
    {"type": "integer", "multipleOf": 7},
]
OTHERS: list[dict[str, Any]] = [
    {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}, "minProperties": 1},
    {"type": "object", "propertyNames": {"enum": ["x", "y", "zz"]}, "additionalProperties": {"type": "null"}},
    {"type": "array", "items": {"enum": ["a", "b", 1, 1.0, None]}, "uniqueItems": True, "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}}, "required": ["ab"]},
    {"$dynamicAnchor": "n", "type": "object", "properties": {"kids": {"items": {"$dynamicRef": "#n"}}}},
]
SCHEMAS = [*({"type": "string", **text} for text in TEXTS), *NUMBERS, *OTHERS]


class RealVocabulary:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.tokenizer: LLTokenizer = grammar_tokenizer(vocabulary, for_many_masks=True)
        self.make = grammar_maker(
            grammar_trial(vocabulary), set(vocabulary.pieces.text), has_own_numbers=True
        )
        pieces = [vocabulary.piece(token) for token in range(vocabulary.vocab_size)]
        self._closes = np.array([piece[-1:] in (b'"', b"}", b"]") for piece in pieces])

    def draw(self, matcher: LLMatcher, rng: random.Random, longest: int = 600) -> bytes | None:
        text = b""
        ends = list(self.vocabulary.end_tokens)
        for _ in range(longest):
            may_end = matcher.is_accepting()
            if matcher.is_stopped() or (may_end and rng.random() < 0.5):
                return text
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            assert not matcher.is_error(), matcher.get_error()
            allowed = np.unpackbits(mask, bitorder="little", count=self.vocabulary.vocab_size).astype(bool)
            allowed[ends] = False
            if not allowed.any():
                assert may_end
                return text
            closing = allowed & self._closes
            choices = np.flatnonzero(closing if closing.any() and rng.random() < 0.3 else allowed)
            token = int(rng.choice(choices))
            assert matcher.consume_tokens([token]), matcher.get_error()
            text += self.vocabulary.piece(token)
        return None


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def real(request: pytest.FixtureRequest) -> Iterator[RealVocabulary]:
    with Vocabulary.open(PACKAGED[request.param].path()) as vocabulary:
        yield RealVocabulary(vocabulary)


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_an_answer_that_ends_is_json_of_its_schema(real: RealVocabulary, number: int) -> None:
    schema = {"type": "object", "properties": {"v": SCHEMAS[number]}, "required": ["v"]}
    grammar = real.make(GrammarOrder(source=GrammarSource.SCHEMA, text=json.dumps(schema)))
    matcher, rng = compile_grammar(grammar.lark, real.tokenizer), random.Random(number)
    drawn = [text for _ in range(6) if (text := real.draw(matcher.deep_copy(), rng)) is not None]
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker(["date"]))
    for text in drawn:
        judge.validate(json.loads(text))
