"""json_object, regex, choice; white space between tokens; and where a text stops fitting a grammar."""

import json
import random

import pytest

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck, TextFit
from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, grammar_maker, regex_rules
from openai_cpu_server.structured.options import InvalidPattern, InvalidSchema, Options, Whitespace
from tests.structured.making import check_rules, check_schema, schema_to_lark
from tests.structured.oracle import Sampler, accepts, check_ours, check_texts


def test_json_object():
    wrong = ["[]", "1", '"a"', '{"a"}', "{", ""]
    check_texts(check_schema(ANY_OBJECT), ["{}", '{"a":[1,{"b":null}]}'], wrong)


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("yes|no", ["yes", "no"], ["maybe", "yesno", ""]),
        ("^\\d{3}-[a-z]+$", ["123-ab"], ["12-ab", "x123-ab"]),
        ("[^\\n]{1,5}", ['a"b\\c', "é"], ["", "a\nb", "abcdef"]),
        ("(ab)*", ["", "abab"], ["aba"]),
        ("a.c", ["abc", "a c"], ["a\nc", "xabc"]),
        ("line\\nline", ["line\nline"], ["line line"]),
        ("((a{2}){2}){2}", ["a" * 8], ["a" * 4]),
        ("[\\]\\^\\-\\\\&~/]+", ["]^-\\&~/"], ["a"]),
        (r"\w+\b!", ["ab!"], ["ab", "!"]),
        (r"(?=.*\d)[a-z\d]{3}", ["ab1", "111"], ["abc", "ab12"]),
        (r"(?!abc)[a-c]{3}", ["abb"], ["abc"]),
    ],
)
def test_regex_matches_as_a_whole(pattern, accepted, rejected):
    check_texts(check_rules(regex_rules(pattern)), accepted, rejected)


def test_broken_regex():
    with pytest.raises(InvalidPattern) as caught:
        regex_rules("ab(c")
    assert caught.value.position == 4
    with pytest.raises(InvalidSchema):
        regex_rules("a^b")


def test_choice():
    choices = ["yes", "yes, please", 'no "thanks"', "a\\b", "é\nü", "yes"]
    check_texts(check_rules(choice_rules(choices)), choices, ["", "ye", "yes,", "no", "maybe"])


@pytest.mark.parametrize(("choices", "message"), [([], None), (["a", "b\ud800"], "no character 0xd800")])
def test_choices_must_not_be_empty_or_have_lone_surrogates(choices, message):
    with pytest.raises(InvalidSchema, match=message):
        choice_rules(choices)


LACKS = set(range(256)) - {0x04, 0x1D, 0xF1}


@pytest.mark.parametrize(
    ("source", "text", "accepted", "rejected"),
    [
        (GrammarSource.CHOICES, '["a", "b\\u0004", "\\ud8c0\\udc00c"]', ["a"], ["b\x04", "\U00040000c"]),
        (GrammarSource.REGEX, "[\\x03-\\x05]|\\x1d?e", ["\x03", "\x05", "e"], ["\x04", "\x1de"]),
        (GrammarSource.GBNF, 'root ::= a | "x"\na ::= [^z] "\x1d"', ["x"], ["y\x1d"]),
        (GrammarSource.SCHEMA, '{"enum": ["\\u0004", "a"]}', ['"a"', '"\\u0004"'], ['"\x04"']),
    ],
)
def test_texts_with_bytes_that_a_vocabulary_lacks_are_left_out(source, text, accepted, rejected):
    grammar = grammar_maker(GrammarCheck, LACKS)(GrammarOrder(source=source, text=text))
    check_texts(GrammarCheck(grammar.lark), accepted, rejected)


def test_a_grammar_whose_texts_all_need_lacking_bytes_is_refused():
    grammar = grammar_maker(GrammarCheck, LACKS)(
        GrammarOrder(source=GrammarSource.CHOICES, text='["\\u0004"]')
    )
    assert "lacks bytes" in grammar.message


def test_a_long_list_of_patterns_is_enforced():
    """The patterns are too many for one automaton."""
    patterns = [f"{c}[{c}-z]{{20,40}}" for c in "abcdef"]
    schema = {"type": "string", "allOf": [{"pattern": p} for p in patterns], "maxLength": 10_000}
    whole = " ".join(c + "z" * 20 for c in "fedcba")
    check_ours(schema, [whole, whole * 60], [whole[22:], whole * 100, ""])


def test_a_check_reports_where_a_text_stops_fitting():
    grammar = check_schema(
        {"properties": {"rating": {"enum": [1, 5]}}, "required": ["rating"], "type": "object"}
    )
    for text, accepted, is_complete in (
        ('{"rating":5}', 12, True),
        ('{"rating":6}', 10, False),
        ('{"rating":5', 11, False),
        ("", 0, False),
    ):
        assert grammar.check(text) == TextFit(accepted, len(text), is_complete)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "string"}},
    "required": ["a"],
}
VALUE = {"a": [1, 2], "b": "x y", "c": {"d": None}}
FLEXIBLE = Options(whitespace=Whitespace.FLEXIBLE)


def test_compact_is_the_default():
    assert accepts(SCHEMA, json.dumps(VALUE, separators=(",", ":")))
    assert not accepts(SCHEMA, json.dumps(VALUE))


@pytest.mark.parametrize(
    "text",
    [
        *(json.dumps(VALUE, **style) for style in ({}, {"indent": 2}, {"indent": "\t"})),
        *('{ "a" : [ ] }', '{"a":[]\n}', '{\r\n"a"\t:\t[ 1 , 2 ]}', '{"a":[],"x": { } }', '{"a":[1,2]}'),
    ],
)
def test_flexible_takes_every_usual_style_and_blanks_around_all_punctuation(text):
    assert accepts(SCHEMA, text, FLEXIBLE)


@pytest.mark.parametrize(
    "text", ['{"a":[1 2]}', '{"a ":[]}', '{"a":[1,,2]}', '{"a":[] "b":"x"}', '{"a":[' + " " * 200 + "]}"]
)
def test_blanks_do_not_replace_punctuation_and_are_limited(text):
    assert not accepts(SCHEMA, text, FLEXIBLE)


def test_drawn_sentences_of_both_are_json():
    for options in (Options(), FLEXIBLE):
        sampler, rng = Sampler(schema_to_lark(SCHEMA, options)), random.Random(20240229)
        drawn = [text for _ in range(20) if (text := sampler.draw(rng))]
        assert drawn
        assert all(isinstance(json.loads(text), dict) for text in drawn)
