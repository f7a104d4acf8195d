"""Grammars under llguidance: what they accept, and sentences drawn from them. No model: a token is a byte."""

from __future__ import annotations

import json
import random
from typing import Any

from llguidance import LLMatcher

from openai_cpu_server.llama.grammar.grammar_check import TOKENIZER, GrammarCheck
from openai_cpu_server.structured import Options
from openai_cpu_server.structured.compiler import schema_to_gbnf
from openai_cpu_server.structured.gbnf import gbnf_to_lark

_END = 256


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def accepts(schema: Any, text: str, options: Options | None = None) -> bool:
    """Whether the schema's grammar takes the text, to its end."""
    return GrammarCheck(schema_to_gbnf(schema, options)).check(text).fits


class Sampler:
    """Draws sentences from a grammar: any byte that the mask allows, the end where it may be."""

    def __init__(self, gbnf: str) -> None:
        lark = LLMatcher.grammar_from_lark(gbnf_to_lark(gbnf))
        self._matcher = LLMatcher(TOKENIZER, lark, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def draw(self, rng: random.Random, longest: int = 400) -> bytes | None:
        """None if no end came within that many bytes."""
        self._matcher.reset()
        text = bytearray()
        while len(text) < longest:
            allowed = self._allowed()
            if _END in allowed and (len(allowed) == 1 or rng.random() < 0.3):
                return bytes(text)
            byte = self._pick([b for b in allowed if b != _END], rng)
            text.append(byte)
            assert self._matcher.consume_token(byte), self._matcher.get_error()
        return None

    def _allowed(self) -> list[int]:
        mask = self._matcher.compute_bitmask()
        return [i for i in range(_END + 1) if mask[i >> 3] >> (i & 7) & 1]

    def _pick(self, allowed: list[int], rng: random.Random) -> int:
        """Closing marks rather often, for sentences to come to an end."""
        closing = [b for b in allowed if b in b'"}],']
        plain = [b for b in allowed if 0x20 <= b < 0x7F]
        choices = (
            closing if closing and rng.random() < 0.4 else plain if plain and rng.random() < 0.9 else allowed
        )
        return rng.choice(choices)


def check(schema: Any, accepted: list[Any], rejected: list[Any], options: Options | None = None) -> None:
    """Values that the schema's grammar must take, and others that it must not."""
    grammar = GrammarCheck(schema_to_gbnf(schema, options))
    for value in accepted:
        assert grammar.check(compact(value)).fits, f"rejected: {compact(value)}"
    for value in rejected:
        assert not grammar.check(compact(value)).fits, f"accepted: {compact(value)}"
