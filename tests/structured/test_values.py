"""type, enum, const, true and false."""

import pytest

from tests.structured.making import check_schema
from tests.structured.oracle import check, check_ours, check_texts, table

ALL = [None, True, False, 0, -3, 1.5, 1e30, "", "a", [], [1, [2]], {}, {"a": {"b": None}}]


@pytest.mark.parametrize("schema", [True, {}, {"title": "a", "default": 1, "examples": [2], "$comment": "c"}])
def test_no_constraint_takes_every_value(schema):
    check(schema, ALL, [])


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


test_cases = table({
    "type list": [
        ({"type": ["integer", "null"]}, [1, None], ["a", 1.5, []]),
        ({"type": ["number", "integer"]}, [1, 1.5], ["a", None])],
    "enum is filtered by its siblings": [
        ({"enum": ["a", "bb", 1, None], "type": "string", "maxLength": 1}, ["a"], ["bb", 1, None]),
        ({"enum": [1, 5, 9, "x"], "minimum": 5}, [5, 9, "x"], [1]),
        ({"enum": ["ab", "cd"], "pattern": "^a"}, ["ab"], ["cd"])],
    "true is not one": [({"enum": [1, False]}, [1, False], [True, 0])],
    "const": [
        ({"const": "x"}, ["x"], ["y", "", None]),
        ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}],
         [{}, {"a": [1]}, {"a": [1, {"b": 0}]}]),
        ({"const": 1.0}, [1, 1.0], [1.5, 2]),
        ({"const": None}, [None], [False, 0])],
    "an object of constants must be complete and closed": [
        ({"const": {"a": 1, "b": 2}}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 2}, {"a": 1, "b": 2, "c": 3}])],
})  # fmt: skip


def test_enum_of_all_kinds():
    values = ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}]
    others = ["re", "redd", 2, False, [], [1], {"a": 1}, {"a": 1, "b": [None], "c": 1}]
    check({"enum": values}, values, others)


def test_nullable_is_of_openapi_and_adds_null():
    check_ours({"type": "string", "nullable": True}, ["a", None], [1])
    check_ours({"type": "string", "nullable": False}, ["a"], [None])
    check_ours({"type": "object", "nullable": True, "required": ["a"]}, [None, {"a": 1}], [{}, "a"])
    within = {"properties": {"a": {"type": "integer", "nullable": True}}}
    check_ours(within, [{"a": None}, {"a": 1}], [{"a": "x"}])
