"""json_object, regex, choice."""

import pytest

from openai_cpu_server.structured.compiler import ANY_OBJECT, choice_rules, regex_rules
from openai_cpu_server.structured.options import InvalidPattern, InvalidSchema
from tests.structured.making import check_rules, check_schema
from tests.structured.oracle import check_texts


def test_json_object():
    check_texts(
        check_schema(ANY_OBJECT), ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", '"a"', '{"a"}', "{", ""]
    )


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


def test_no_choice():
    with pytest.raises(InvalidSchema):
        choice_rules([])


def test_a_choice_is_of_characters():
    with pytest.raises(InvalidSchema, match="no character 0xd800"):
        choice_rules(["a", "b\ud800"])
