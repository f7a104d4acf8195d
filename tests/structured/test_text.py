"""The text itself: readable, and fit for llama.cpp's own parser."""

import re

import pytest

from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, compile_schema, regex_rules
from openai_cpu_server.structured.gbnf.printer import gbnf_text, text_length
from openai_cpu_server.structured.lark.translation import Translation
from tests.structured.making import check_gbnf, check_rules, gbnf_to_lark, schema_to_gbnf
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
