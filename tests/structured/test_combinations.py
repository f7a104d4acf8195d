"""allOf, anyOf, oneOf, not, if/then/else."""

import pytest

from openai_cpu_server.structured import InvalidSchema, UnsupportedSchema, schema_to_gbnf
from tests.structured.oracle import check

INT, STR = {"type": "integer"}, {"type": "string"}


def test_all_of_merges():
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": INT}, "required": ["a"]},
            {"properties": {"b": STR}, "required": ["b"]},
        ]
    }
    check(
        schema, [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 1}], [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}]
    )


def test_all_of_the_same_property():
    schema = {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"minimum": 2}}},
            {"properties": {"a": {"maximum": 4, "type": "integer"}}},
        ],
    }
    check(schema, [{}, {"a": 2}, {"a": 4}], [{"a": 1}, {"a": 5}, {"a": "x"}])


def test_closed_schemas_that_are_merged_leave_what_both_know():
    one = {"properties": {"a": INT, "b": INT}, "additionalProperties": False}
    other = {"properties": {"b": INT, "c": INT}, "additionalProperties": False}
    check({"type": "object", "allOf": [one, other]}, [{}, {"b": 1}], [{"a": 1}, {"c": 1}, {"b": "x"}])


def test_all_of_that_contradicts_itself_is_refused():
    with pytest.raises(InvalidSchema):
        schema_to_gbnf({"allOf": [INT, STR]})


def test_any_of():
    check({"anyOf": [INT, STR]}, [1, "a"], [None, 1.5])
    check({"anyOf": [INT, True]}, [1, "a", None], [])
    check(
        {
            "type": "object",
            "properties": {"a": INT, "b": INT},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"c": 1}],
    )


def test_one_of_disjoint_branches():
    circle = {"properties": {"kind": {"const": "circle"}, "r": INT}, "required": ["kind", "r"]}
    square = {"properties": {"kind": {"const": "square"}, "a": INT}, "required": ["kind", "a"]}
    check(
        {"type": "object", "oneOf": [circle, square]},
        [{"kind": "circle", "r": 1}, {"kind": "square", "a": 1}],
        [{"kind": "circle"}, {"kind": "x", "r": 1}, {}],
    )


def test_one_of_overlapping_branches_excludes_what_both_take():
    check({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 0, 2.5, "a"], [3, 1.5])
    check(
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^a"}]},
        ["b", "abcd"],
        ["ab", "bcde"],
    )
    schema = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    check(schema, [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}], [{}, {"a": 1, "b": 1}])


def test_one_of_a_branch_within_another():
    check({"oneOf": [{"type": "string"}, {"type": "string", "pattern": "^\\d+$"}]}, ["a", ""], ["12"])


def test_one_of_equal_branches_takes_nothing():
    with pytest.raises(InvalidSchema):
        schema_to_gbnf({"oneOf": [STR, STR]})


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (INT, ["a", None, 1.5], [1]),
        ({"type": ["integer", "null"]}, ["a", 1.5, []], [1, None]),
        ({"enum": ["a", 1]}, ["b", 2, "", None, "aa", 1.5], ["a", 1]),
        ({"const": None}, [0, "a"], [None]),
        ({"minimum": 3}, [2, 2.5], [3, 4, "a"]),
        ({"type": "number", "minimum": 3}, [2, "a"], [3, 4]),
        ({"multipleOf": 2}, [1, 3], [2, 0]),
        ({"minLength": 2}, ["", "a"], ["ab", 1]),
        ({"type": "string", "pattern": "^a"}, ["b", "", 1], ["a", "ab"]),
        ({"type": "string", "format": "ipv4"}, ["x", "1.2.3"], ["1.2.3.4"]),
        ({"required": ["a"]}, [{}, {"b": 1}], [{"a": 1}, "x"]),
        ({"type": "object", "required": ["a", "b"]}, [{}, {"a": 1}, 1], [{"a": 1, "b": 1}]),
        ({"type": "object", "properties": {"a": INT}}, [1, {"a": "x"}], [{}, {"a": 1}, {"b": 1}]),
        ({"type": "object", "properties": {"a": INT}, "required": ["a"]}, [{}, {"a": "x"}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": False}, [{"a": 1}, 1], [{}]),
        (
            {"type": "object", "patternProperties": {"^x": INT}},
            [{"xa": "s"}, {"b": 1, "x": None}],
            [{"xa": 1}, {"b": 1}],
        ),
        ({"type": "object", "minProperties": 1}, [{}], [{"a": 1}]),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, [{"b": 1}], [{"a": 1}, {}]),
        ({"type": "array", "items": INT}, [["a"], [1, "a"], 1], [[], [1]]),
        ({"type": "array", "minItems": 2}, [[], [1]], [[1, 2]]),
        ({"type": "array", "contains": INT}, [[], ["a"]], [[1], ["a", 1]]),
        ({"type": "array", "prefixItems": [INT]}, [["a"], ["a", 1]], [[], [1]]),
        ({"const": {"a": 1}}, [{}, {"a": 2}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
        ({"const": [1]}, [[], [2], [1, 1]], [[1]]),
        ({"anyOf": [INT, STR]}, [None, 1.5], [1, "a"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [0, 4], [1, 2, "a"]),
        ({"not": INT}, [1], ["a"]),
        ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [0.5, 2, "a"], [1, 2.5]),
    ],
)
def test_not(schema, accepted, rejected):
    check({"not": schema}, accepted, rejected)


def test_what_cannot_be_negated_is_refused():
    with pytest.raises(UnsupportedSchema) as caught:
        schema_to_gbnf({"not": {"type": "array", "uniqueItems": True}})
    assert caught.value.keyword == "uniqueItems"


def test_if_then_else():
    schema = {
        "type": "object",
        "properties": {"country": {"enum": ["us", "nl"]}, "zip": STR},
        "required": ["country", "zip"],
        "if": {"properties": {"country": {"const": "us"}}},
        "then": {"properties": {"zip": {"pattern": "^\\d{5}$"}}},
        "else": {"properties": {"zip": {"pattern": "^\\d{4}[A-Z]{2}$"}}},
    }
    check(
        schema,
        [{"country": "us", "zip": "12345"}, {"country": "nl", "zip": "1234AB"}],
        [{"country": "us", "zip": "1234AB"}, {"country": "nl", "zip": "12345"}],
    )


def test_if_without_then_or_else():
    check({"if": INT, "else": STR}, [1, "a"], [None])
    check({"if": INT, "then": {"minimum": 3}}, [3, "a"], [2])
    check({"if": INT}, [1, "a"], [])


def test_branches_keep_the_order_in_which_the_schema_states_them():
    schema = {
        "type": "object",
        "oneOf": [{"properties": {"x": INT}, "required": ["x"]}],
        "properties": {"y": INT},
        "required": ["y"],
    }
    check(schema, [{"x": 1, "y": 1}], [{"y": 1, "x": 1}])
