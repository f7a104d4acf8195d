"""json_object, regex, choice."""

import pytest

from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, regex_rules
from openai_cpu_server.structured.options import InvalidPattern, InvalidSchema
from tests.structured.making import check_rules, check_schema


def fits(rules, text):
    return check_rules(rules).check(text).fits


def test_json_object():
    grammar = check_schema(ANY_OBJECT)
    for text in ("{}", '{"a":[1,{"b":null}]}'):
        assert grammar.check(text).fits
    for text in ("[]", "1", '"a"', '{"a"}', "{", ""):
        assert not grammar.check(text).fits


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
    rules = regex_rules(pattern)
    assert all(fits(rules, text) for text in accepted)
    assert not any(fits(rules, text) for text in rejected)


def test_broken_regex():
    with pytest.raises(InvalidPattern) as caught:
        regex_rules("ab(c")
    assert caught.value.position == 4
    with pytest.raises(InvalidSchema):
        regex_rules("a^b")


def test_choice():
    rules = choice_rules(["yes", "yes, please", 'no "thanks"', "a\\b", "é\nü", "yes"])
    for text in ("yes", "yes, please", 'no "thanks"', "a\\b", "é\nü"):
        assert fits(rules, text)
    for text in ("", "ye", "yes,", "no", "maybe"):
        assert not fits(rules, text)


def test_no_choice():
    with pytest.raises(InvalidSchema):
        choice_rules([])


def test_a_choice_is_of_characters():
    with pytest.raises(InvalidSchema, match="no character 0xd800"):
        choice_rules(["a", "b\ud800"])
