"""Lark text of a grammar: names, counts, and several grammars under one root."""

from __future__ import annotations

import re

import pytest

from openai_cpu_server.structured.compiler import compile_schema, regex_rules
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.options import InvalidGrammar, Limits, SchemaTooLarge
from openai_cpu_server.structured.writing.grammar import composed, packed_rules, text_length, unpacked_rules
from tests.structured.making import check_rules, schema_to_lark
from tests.structured.oracle import check_texts

REVIEW = {
    "type": "object",
    "properties": {
        "rating": {"type": "integer", "minimum": 1, "maximum": 5},
        "pros": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "summary": {"type": "string", "maxLength": 120},
    },
    "required": ["rating", "pros", "summary"],
    "additionalProperties": False,
}


def schema_rules(schema):
    return compile_schema(schema).rules


def test_deep_and_counted_patterns_keep_their_language():
    deep = check_rules(schema_rules({"type": "string", "pattern": "^" + "(a" * 40 + ")?" * 40 + "$"}))
    check_texts(deep, [f'"{"a" * n}"' for n in (0, 1, 12, 40)], [f'"{"a" * 41}"', '"b"', '"ab"'])
    counted = check_rules(regex_rules("((ab){2,3}){0,5}(abc)*(x{2})+"))
    good = ["xx", "ababxx", "abababcxx", "ab" * 15 + "xxxx"]
    check_texts(counted, good, ["x", "abxx", "xxx", "ab" * 16 + "xx", "abab"])


def test_rules_are_named_after_properties_and_repetition_is_counted_not_nested():
    text = schema_to_lark(REVIEW)
    assert {"start", "r_pros"} <= set(re.findall(r"^(\S+):", text, re.M))
    assert "{0,120}" in text
    assert "){0,2}" in text
    assert "?)?" not in text


STRINGS = schema_rules({"type": "array", "items": {"type": "string", "pattern": '^[^"\\]\\[a-z]{2}$'}})
ANYTHING = schema_rules({"type": "object"})
OTHER = schema_rules({"type": "object", "properties": {"a": {}}, "additionalProperties": False})


def test_parts_keep_their_language() -> None:
    grammar = check_rules(composed('"1" a | "2" b | "3" c', {"a": STRINGS, "b": ANYTHING, "c": OTHER}))
    good = ['1["AB"]', "1[]", '2{"x":[1,{}]}', '3{"a":{"b":"c"}}', "3{}"]
    bad = ['1["ab"]', '1["A"]', '2["AB"]', '3{"x":1}', '{"x":1}', "1", ""]
    check_texts(grammar, good, bad)


def test_rules_that_parts_have_in_common_are_written_once() -> None:
    both = composed("a b", {"a": ANYTHING, "b": ANYTHING})
    assert text_length(both) < 1.3 * text_length(ANYTHING)


def test_rules_of_one_name_that_refer_to_different_rules_stay_two() -> None:
    one, other = (parse_gbnf(f'root ::= x\nx ::= "[" y "]"\ny ::= "{digit}"\n') for digit in "12")
    check_texts(check_rules(composed("a b", {"a": one, "b": other})), ["[1][2]"], ["[1][1]"])


def test_further_rules_may_follow_the_root() -> None:
    grammar = check_rules(composed('item ("," item)*\nitem ::= a', {"a": OTHER}))
    assert grammar.check('{},{"a":1}').fits


def test_rules_that_refer_to_themselves_are_shared_too() -> None:
    ends = ('"x" x | "y"', '"x" x | "y"', '"x" x | "z"')
    one, same, other = (parse_gbnf(f"root ::= x\nx ::= {end}") for end in ends)
    rules = composed("a b c", {"a": one, "b": same, "c": other})
    assert {name for name in rules if "-" in name} == {"a-x", "c-x"}
    assert check_rules(rules).check("xyyxz").fits


def test_a_clients_own_grammar_is_a_part_like_others() -> None:
    own = parse_gbnf('root ::= Word # of it\n  # and more\nWord ::= (\n"a"\n| "\\x41"\n) | "::= b"')
    grammar = check_rules(composed('"[" own "]"', {"own": own}))
    assert all(grammar.check(text).fits for text in ("[a]", "[A]", "[::= b]"))


def test_a_name_without_a_part_is_an_error() -> None:
    with pytest.raises(InvalidGrammar, match="no rule 'b'"):
        composed("a b", {"a": OTHER})


def test_parts_survive_packing() -> None:
    tokens = parse_gbnf('root ::= <[302]> [^a-z] x{2,} | ""\nx ::= "é" [] ]{,3}'.replace("[] ]", "[ ]"))
    for rules in (STRINGS, ANYTHING, OTHER, tokens):
        assert unpacked_rules(packed_rules(rules)) == rules


def test_a_composed_grammar_has_a_limit() -> None:
    with pytest.raises(SchemaTooLarge):
        composed("a", {"a": ANYTHING}, Limits(grammar=100))
