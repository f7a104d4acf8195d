"""type, enum, const, true and false."""

import pytest

from tests.structured.oracle import check, check_ours, check_spelling, table

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


test_spelling = table({
    "an integer has no point": [({"type": "integer"}, ["0", "-1", "10"], ["0.5", "1.0", "01", "+1"])],
    "a number has every spelling of JSON and no other": [
        ({"type": "number"}, ["0", "-0", "1.50", "1e5", "1E+5", "-1.5e-3"],
         ["01", ".5", "1.", "+1", "1e", "NaN", "Infinity", "0x1", "--1"])],
    "a string has escapes but no lone surrogate and no raw control character": [
        ({"type": "string"},
         ['"\\u00e9"', '"\\ud83d\\ude00"', '"\\/"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"é😀"'],
         ['"\\ud83d"', '"\\udc00"', '"\\x41"', '"\n"', '"a', "'a'", '"\\u12"'])],
}, check_spelling)  # fmt: skip


test_nullable_is_of_openapi_and_adds_null = table({
    "beside a type": [({"type": "string", "nullable": is_so}, ["a", None][:1 + is_so], [1, None][:2 - is_so])
                      for is_so in (True, False)],
    "beside other keywords": [
        ({"type": "object", "nullable": True, "required": ["a"]}, [None, {"a": 1}], [{}, "a"])],
    "of a property": [
        ({"properties": {"a": {"type": "integer", "nullable": True}}}, [{"a": None}, {"a": 1}], [{"a": ""}])],
}, check_ours)  # fmt: skip


test_cases = table({
    "enum of all kinds": [
        ({"enum": ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}]},
         ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}],
         ["re", "redd", 2, False, [], [1], {"a": 1}, {"a": 1, "b": [None], "c": 1}])],
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
