"""type, enum, const, true and false."""

import pytest

from openai_cpu_server.structured.options import InvalidSchema
from tests.structured.making import check_schema, schema_to_gbnf
from tests.structured.oracle import check, check_ours, check_texts

ALL = [None, True, False, 0, -3, 1.5, 1e30, "", "a", [], [1, [2]], {}, {"a": {"b": None}}]


@pytest.mark.parametrize("schema", [True, {}, {"title": "a", "default": 1, "examples": [2], "$comment": "c"}])
def test_no_constraint_takes_every_value(schema):
    check(schema, ALL, [])


@pytest.mark.parametrize("schema", [False, {"not": {}}, {"enum": []}, {"type": "string", "enum": [1]}])
def test_a_schema_that_nothing_fits_is_refused(schema):
    with pytest.raises(InvalidSchema, match="no value"):
        schema_to_gbnf(schema)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("null", [None]),
        ("boolean", [True, False]),
        ("integer", [0, -3, 12345678901234567890]),
        ("number", [0, -3, 1.5, 1e30, 1e-7, -0.0]),
        ("string", ["", "a", 'é\n"\\\u2028', "😀", "\x00\x1f\x7f"]),
        ("array", [[], [1, "a", None, {}]]),
        ("object", [{}, {"a": 1, "": [], 'é"': {}}]),
    ],
)
def test_type(name, accepted):
    others = [v for v in (None, True, 0.5, "a", [], {}) if type(v) not in {type(a) for a in accepted}]
    check({"type": name}, accepted, others)


def test_integer_is_written_without_a_point():
    check_ours({"type": "integer"}, [0, -1, 10], [0.5, 1.0])
    check_texts(check_schema({"type": "integer"}), [], ["01", "+1"])


def test_number_takes_every_spelling_of_json_and_no_other():
    numbers = ("0", "-0", "1.50", "1e5", "1E+5", "-1.5e-3")
    others = ("01", ".5", "1.", "+1", "1e", "NaN", "Infinity", "0x1", "--1")
    check_texts(check_schema({"type": "number"}), numbers, others)


def test_string_takes_escapes_but_no_lone_surrogate_and_no_raw_control():
    strings = ('"\\u00e9"', '"\\ud83d\\ude00"', '"\\/"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"é😀"')
    others = ('"\\ud83d"', '"\\udc00"', '"\\x41"', '"\n"', '"a', "'a'", '"\\u12"')
    check_texts(check_schema({"type": "string"}), strings, others)


def test_type_list():
    check({"type": ["integer", "null"]}, [1, None], ["a", 1.5, []])
    check({"type": ["number", "integer"]}, [1, 1.5], ["a", None])


def test_nullable_adds_null_to_a_type():
    check_ours({"type": "string", "nullable": True}, ["a", None], [1])
    check_ours({"type": "string", "nullable": False}, ["a"], [None])


def test_unknown_type_is_refused():
    with pytest.raises(InvalidSchema, match="strng"):
        schema_to_gbnf({"type": "strng"})


def test_enum_of_all_kinds():
    values = ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}]
    check(
        {"enum": values}, values, ["re", "redd", 2, False, [], [1], {"a": 1}, {"a": 1, "b": [None], "c": 1}]
    )


def test_enum_is_filtered_by_its_siblings():
    check({"enum": ["a", "bb", 1, None], "type": "string", "maxLength": 1}, ["a"], ["bb", 1, None])
    check({"enum": [1, 5, 9, "x"], "minimum": 5}, [5, 9, "x"], [1])
    check({"enum": ["ab", "cd"], "pattern": "^a"}, ["ab"], ["cd"])


def test_true_is_not_one():
    check({"enum": [1, False]}, [1, False], [True, 0])


def test_const():
    check({"const": "x"}, ["x"], ["y", "", None])
    check(
        {"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{}, {"a": [1]}, {"a": [1, {"b": 0}]}]
    )
    check({"const": 1.0}, [1, 1.0], [1.5, 2])
    check({"const": None}, [None], [False, 0])


def test_an_object_of_constants_must_be_complete_and_closed():
    check({"const": {"a": 1, "b": 2}}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 2}, {"a": 1, "b": 2, "c": 3}])
