"""The text itself: readable, and fit for llama.cpp's own parser."""

import re

import pytest

from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, compile_schema, regex_rules
from openai_cpu_server.structured.gbnf.printer import gbnf_text, text_length
from openai_cpu_server.structured.lark.translation import Translation
from tests.structured.making import gbnf_to_lark, schema_to_gbnf
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
    "open": schema_rules({"properties": {"a-b": {}, "é\n": {"pattern": "[^-a\\]^\\\\]"}}}),
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


def test_repetition_is_counted_not_nested():
    text = schema_to_gbnf(REVIEW)
    assert "char{0,120}" in text
    assert "){0,2}" in text
    assert "?)?" not in text


def test_rules_are_named_after_properties():
    assert {"root", "rating-number", "pros"} <= set(re.findall(r"^(\S+) ::=", schema_to_gbnf(REVIEW), re.M))


def test_deep_patterns_do_not_nest_groups_too_deep():
    text = schema_to_gbnf({"pattern": "^" + "(a" * 40 + ")?" * 40 + "$"})
    assert max(line.count("(") for line in text.splitlines()) < 30


@pytest.fixture(scope="module")
def parses():
    """llama.cpp's own parser: it gives a grammar, or null."""
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
