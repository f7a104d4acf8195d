"""Grammars under llguidance: accepted texts, and sentences drawn without a model. A token is a byte."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jsonschema
import pytest
from llguidance import LLMatcher

from openai_cpu_server.contract.grammar import CAPTURE
from openai_cpu_server.llama.grammar.grammar_check import (
    TOKENIZER,
    GrammarCheck,
    ListItems,
    keeps_items_apart,
    new_trials,
    text_of_byte,
)
from openai_cpu_server.structured.options import Options
from tests.structured.making import check_schema

_END = 256


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def accepts(schema: Any, text: str, options: Options | None = None) -> bool:
    return check_schema(schema, options).check(text).fits


class Sampler:
    def __init__(self, lark: str) -> None:
        self._start = LLMatcher(TOKENIZER, LLMatcher.grammar_from_lark(lark), log_level=0)
        assert not self._start.is_error(), self._start.get_error()
        self._has_list_items = CAPTURE in lark

    def draw(self, rng: random.Random, longest: int = 400) -> bytes | None:
        matcher, text, items = self._start.deep_copy(), bytearray(), ListItems()
        while len(text) < longest:
            allowed = _allowed(bytes(matcher.compute_bitmask()))
            if allowed.may_end and (not allowed.all or rng.random() < 0.3):
                return bytes(text)
            byte = allowed.pick(rng)
            if self._has_list_items and not keeps_items_apart(
                items, byte, matcher, text_of_byte, new_trials()
            ):
                continue
            assert matcher.consume_token(byte), matcher.get_error()
            following = items.behind(bytes([byte]), matcher)
            assert following is not None
            items = following
            text.append(byte)
        return None


class _Allowed(NamedTuple):
    may_end: bool
    all: list[int]
    plain: list[int]
    closing: list[int]

    def pick(self, rng: random.Random) -> int:
        """Prefer closing marks, so that sentences come to an end."""
        if self.closing and rng.random() < 0.4:
            return rng.choice(self.closing)
        return rng.choice(self.plain if self.plain and rng.random() < 0.9 else self.all)


@functools.lru_cache(maxsize=4096)
def _allowed(mask: bytes) -> _Allowed:
    found = [i for i in range(_END) if mask[i >> 3] >> (i & 7) & 1]
    plain = [b for b in found if 0x20 <= b < 0x7F]
    may_end = bool(mask[_END >> 3] & 1)
    return _Allowed(may_end, found, plain, [b for b in found if b in b'"}],'])


def check(schema: Any, accepted: list[Any], rejected: list[Any], options: Options | None = None) -> None:
    """Check the values by the schema's grammar, and by `jsonschema` in case a value itself is wrong."""
    judge = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    assert [value for value in accepted if not judge.is_valid(value)] == []
    assert [value for value in rejected if judge.is_valid(value)] == []
    check_ours(schema, accepted, rejected, options)


def check_ours(schema: Any, accepted: list[Any], rejected: list[Any], options: Options | None = None) -> None:
    """Check without `jsonschema`, for orders of properties, spelling of numbers, formats and patterns."""
    check_texts(check_schema(schema, options), map(compact, accepted), map(compact, rejected))


def check_spelling(schema: Any, accepted: Iterable[str], rejected: Iterable[str]) -> None:
    check_texts(check_schema(schema), accepted, rejected)


def check_texts(grammar: GrammarCheck, accepted: Iterable[str], rejected: Iterable[str]) -> None:
    assert [text for text in accepted if not grammar.check(text).fits] == []
    assert [text for text in rejected if grammar.check(text).fits] == []


def table(cases: dict[str, Any], compare: Callable[..., None] = check) -> Callable[[str], None]:
    """Make a test of each name, whose cases are arguments of `compare`: schema, accepted, rejected."""

    @pytest.mark.parametrize("name", cases)
    def test(name: str) -> None:
        for case in cases[name]:
            compare(*case)

    return test
