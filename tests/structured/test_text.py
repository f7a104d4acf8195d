"""The text itself: readable, fit for llama.cpp's own parser, and grammars under one root."""

from __future__ import annotations

import re

import pytest

from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, compile_schema, regex_rules
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.gbnf.printer import gbnf_text, text_length
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import InvalidGrammar, Limits, SchemaTooLarge
from openai_cpu_server.structured.writing.grammar import composed, packed_rules, unpacked_rules
from tests.structured.making import check_gbnf, check_rules, gbnf_to_lark, schema_to_gbnf
from tests.structured.oracle import check_texts
from tests.tiny_model import tiny_model_path

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


GRAMMARS = {
    "review": schema_rules(REVIEW),
    "any": schema_rules(True),
    "named": schema_rules(
        {"properties": {"a-b": {}, "é\n": {"pattern": "[^-a\\]^\\\\]"}}, "additionalProperties": False}
    ),
    "formats": schema_rules({"anyOf": [{"format": f} for f in ("uri", "date-time", "ipv6", "email")]}),
    "deep": schema_rules({"pattern": "^" + "(a" * 40 + ")?" * 40 + "$"}),
    "counted": regex_rules("((ab){2,3}){0,5}(abc)*(x{2})+"),
    "tree": schema_rules({"type": "array", "items": {"$ref": "#"}}),
    "object": schema_rules(ANY_OBJECT),
    "regex": regex_rules("[^\\n\\u2028]+\\x07(\\t|é){2}"),
    "choice": choice_rules(['a"\\\n', "é"]),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_runs_is_what_is_printed(name):
    text = gbnf_text(GRAMMARS[name])
    assert len(text) == text_length(GRAMMARS[name])
    assert Translation(GRAMMARS[name]).text() == gbnf_to_lark(text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}}},
        {"type": "string", "pattern": "[a-c]d", "maxLength": 40, "minLength": 3},
        {"type": "string", "allOf": [{"pattern": "a{9}"}, {"pattern": "b{9}"}], "maxLength": 30},
    ],
)
def test_intersections_are_printed_as_what_they_mean(schema):
    rules = schema_rules(schema)
    printed, ours = check_gbnf(gbnf_text(rules)), check_rules(rules)
    assert any(x.is_extended for x in rules.values())
    texts = ['"add"', '"ad"', '"xad"', f'"{"ad" * 20}"', f'"{"ad" * 21}"', f'"{"b" * 9}{"a" * 9}"']
    texts += ['{"a":null,"b":1}', '{"ab":1}', '{"ab":null}', '{"abc":1}', '{"":1}', f'"{"a" * 9}b"']
    fits = [ours.check(text).fits for text in texts]
    assert any(fits)
    assert [printed.check(text).fits for text in texts] == fits


def test_rules_are_named_after_properties_and_repetition_is_counted_not_nested():
    text = schema_to_gbnf(REVIEW)
    assert {"root", "rating-number", "pros"} <= set(re.findall(r"^(\S+) ::=", text, re.M))
    assert "char{0,120}" in text
    assert "){0,2}" in text
    assert "?)?" not in text


def test_deep_patterns_do_not_nest_groups_too_deep():
    text = schema_to_gbnf({"pattern": "^" + "(a" * 40 + ")?" * 40 + "$"})
    assert max(line.count("(") for line in text.splitlines()) < 30


@pytest.fixture(scope="module")
def parses():
    import llama_cpp

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(tiny_model_path()).encode(), parameters)
    vocabulary = llama_cpp.llama_model_get_vocab(model)

    def parse(text):
        sampler = llama_cpp.llama_sampler_init_grammar(vocabulary, text.encode(), b"root")
        if sampler:
            llama_cpp.llama_sampler_free(sampler)
        return bool(sampler)

    yield parse
    llama_cpp.llama_model_free(model)


@pytest.mark.native
@pytest.mark.parametrize("name", GRAMMARS)
def test_llama_cpp_reads_it(name, parses):
    assert parses(gbnf_text(GRAMMARS[name]))
    assert not parses("root ::= (")


STRINGS = schema_rules({"type": "array", "items": {"type": "string", "pattern": '^[^"\\]\\[a-z]{2}$'}})
ANYTHING = schema_rules({"type": "object"})
OTHER = schema_rules({"type": "object", "properties": {"a": {}}, "additionalProperties": False})


def test_parts_mean_what_they_meant_alone() -> None:
    grammar = check_rules(composed('"1" a | "2" b | "3" c', {"a": STRINGS, "b": ANYTHING, "c": OTHER}))
    good = ['1["AB"]', "1[]", '2{"x":[1,{}]}', '3{"a":{"b":"c"}}', "3{}"]
    bad = ['1["ab"]', '1["A"]', '2["AB"]', '3{"x":1}', '{"x":1}', "1", ""]
    check_texts(grammar, good, bad)


def test_what_parts_have_in_common_is_written_once() -> None:
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


def test_a_name_that_is_no_part_is_an_error() -> None:
    with pytest.raises(InvalidGrammar, match="no rule 'b'"):
        composed("a b", {"a": OTHER})


def test_parts_are_the_same_behind_a_boundary() -> None:
    tokens = parse_gbnf('root ::= <[302]> [^a-z] x{2,} | ""\nx ::= "é" [] ]{,3}'.replace("[] ]", "[ ]"))
    for rules in (STRINGS, ANYTHING, OTHER, tokens):
        assert unpacked_rules(packed_rules(rules)) == rules


def test_it_has_a_limit() -> None:
    with pytest.raises(SchemaTooLarge):
        composed("a", {"a": ANYTHING}, Limits(grammar=100))
