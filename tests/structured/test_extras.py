"""json_object, regex, choice."""

import pytest

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured import InvalidPattern, InvalidSchema
from openai_cpu_server.structured.extras import choice_to_gbnf, json_object_gbnf, regex_to_gbnf


def fits(gbnf, text):
    return GrammarCheck(gbnf).check(text).fits


def test_json_object():
    for text in ("{}", '{"a":[1,{"b":null}]}'):
        assert fits(json_object_gbnf(), text)
    for text in ("[]", "1", '"a"', '{"a"}', "{", ""):
        assert not fits(json_object_gbnf(), text)


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
    ],
)
def test_regex_matches_as_a_whole(pattern, accepted, rejected):
    gbnf = regex_to_gbnf(pattern)
    assert all(fits(gbnf, text) for text in accepted)
    assert not any(fits(gbnf, text) for text in rejected)


def test_broken_regex():
    with pytest.raises(InvalidPattern) as caught:
        regex_to_gbnf("ab(c")
    assert caught.value.position == 4
    with pytest.raises(InvalidSchema):
        regex_to_gbnf("a^b")


def test_choice():
    gbnf = choice_to_gbnf(["yes", "yes, please", 'no "thanks"', "a\\b", "é\nü", "yes"])
    for text in ("yes", "yes, please", 'no "thanks"', "a\\b", "é\nü"):
        assert fits(gbnf, text)
    for text in ("", "ye", "yes,", "no", "maybe"):
        assert not fits(gbnf, text)


def test_no_choice():
    with pytest.raises(InvalidSchema):
        choice_to_gbnf([])
