"""Grammars under one root."""

from __future__ import annotations

import pytest

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured import Limits, SchemaTooLarge
from openai_cpu_server.structured.compiler import schema_to_gbnf
from openai_cpu_server.structured.writing.compose import compose

STRINGS = schema_to_gbnf({"type": "array", "items": {"type": "string", "pattern": '^[^"\\]\\[a-z]{2}$'}})
ANYTHING = schema_to_gbnf({"type": "object"})
OTHER = schema_to_gbnf({"type": "object", "properties": {"a": {}}, "additionalProperties": False})


def test_parts_mean_what_they_meant_alone() -> None:
    grammar = GrammarCheck(compose('"1" a | "2" b | "3" c', {"a": STRINGS, "b": ANYTHING, "c": OTHER}))
    good = ['1["AB"]', "1[]", '2{"x":[1,{}]}', '3{"a":{"b":"c"}}', "3{}"]
    bad = ['1["ab"]', '1["A"]', '2["AB"]', '3{"x":1}', '{"x":1}', "1", ""]
    assert all(grammar.check(text).fits for text in good)
    assert not any(grammar.check(text).fits for text in bad)


def test_what_parts_have_in_common_is_written_once() -> None:
    assert len(compose("a b", {"a": ANYTHING, "b": ANYTHING})) < 1.3 * len(ANYTHING)


def test_rules_of_one_name_that_refer_to_different_rules_stay_two() -> None:
    one, other = 'root ::= x\nx ::= "[" y "]"\ny ::= "1"\n', 'root ::= x\nx ::= "[" y "]"\ny ::= "2"\n'
    grammar = GrammarCheck(compose("a b", {"a": one, "b": other}))
    assert grammar.check("[1][2]").fits
    assert not grammar.check("[1][1]").fits


def test_further_rules_may_follow_the_root() -> None:
    grammar = GrammarCheck(compose('item ("," item)*\nitem ::= a', {"a": OTHER}))
    assert grammar.check('{},{"a":1}').fits


def test_it_has_a_limit() -> None:
    with pytest.raises(SchemaTooLarge):
        compose("a", {"a": ANYTHING}, Limits(grammar=100))
