"""The standard's own kinds of cases, beside those of each keyword: what is easily overlooked.

Instances have their properties in the schema's order, and integers without a point, as grammars want them.
"""

from __future__ import annotations

import pytest

from tests.structured.oracle import check, check_ours

D6 = {"$schema": "http://json-schema.org/draft-06/schema#"}
D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
D2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
INT, STR, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
SHUT = {"additionalProperties": False}

GROUPS = {
    "type: a list of one": ({"type": ["string"]}, ["a", ""], [1, None, ["a"]]),
    "type: several containers": ({"type": ["array", "object"]}, [[1], {"a": 1}], [1, "a", None]),
    "properties: with a boolean and a reference": (
        {"$defs": {"i": INT}, "properties": {"a": {"$ref": "#/$defs/i"}, "b": True, "c": False}},
        [{"a": 1, "b": "x"}, {}, []],
        [{"a": "x"}, {"c": 1}],
    ),
    "additionalProperties: does not look into allOf": (
        {"allOf": [{"properties": {"a": {}}}], "additionalProperties": {"type": "boolean"}},
        [{"a": True}, {}],
        [{"a": 1}],
    ),
    "patternProperties: several that match at once": (
        {"patternProperties": {"a": INT, "aa": {"maximum": 20}}},
        [{"a": 21}, {"aaaa": 18}, {"b": "x"}, []],
        [{"a": "x"}, {"aaaa": 31}, {"aa": 21}],
    ),
    "patternProperties: false": (
        {"patternProperties": {"^f": True, "^b": False}},
        [{"foo": 1}, {}],
        [{"bar": 2}],
    ),
    "maxProperties: zero": ({"maxProperties": 0}, [{}, [1, 2]], [{"a": 1}]),
    "items: a list with booleans, draft 6": ({**D6, "items": [True, False]}, [[1], []], [[1, "a"]]),
    "contains: true and false": ({"contains": True}, [["a"]], [[]]),
    "maxItems": ({"maxItems": 2}, [[1], [1, 2], "foobar"], [[1, 2, 3]]),
    "uniqueItems: numbers that are equal": (
        {"items": {"enum": [1, 2, "1", None, True]}, "uniqueItems": True},
        [[1, True], [1, "1", None], []],
        [[1, 1], ["1", 2, "1"], [None, None]],
    ),
    "const: an object, an array, null": (
        {"anyOf": [{"const": {"a": [True]}}, {"const": [{"b": 0}]}, {"const": None}]},
        [{"a": [True]}, [{"b": 0}], None],
        [{"a": [1]}, [{"b": False}], [], {}, 0],
    ),
    "$ref: beside a sibling of a property's name": (
        {"properties": {"$ref": STR}},
        [{"$ref": "a"}],
        [{"$ref": 2}],
    ),
    "$ref: siblings count, 2019-09": (
        {**D2019, "$defs": {"a": {"type": "array"}}, "$ref": "#/$defs/a", "maxItems": 1},
        [[], [1]],
        [[1, 2], 1],
    ),
    "allOf: a false one beside a true one": ({"anyOf": [{"allOf": [True, False]}, NULL]}, [None], [1, "a"]),
    "anyOf: with its base": (
        {"type": "string", "anyOf": [{"maxLength": 2}, {"minLength": 4}]},
        ["ab", "abcd"],
        ["abc", 3],
    ),
    "oneOf: all true": ({"anyOf": [NULL, {"oneOf": [True, True]}]}, [None], [1]),
    "not: a property": ({"not": {"properties": {"a": STR}}}, [{"a": 1}], [1, "x", {}, {"a": "x"}, {"b": 1}]),
    "not: false lets all pass": ({"not": False}, [1, "a", None, {}], []),
    "if: then and else": (
        {
            "type": "integer",
            "if": {"exclusiveMaximum": 0},
            "then": {"minimum": -10},
            "else": {"multipleOf": 2},
        },
        [-1, -10, 4, 0],
        [-100, 3],
    ),
    "if: then without if means nothing": ({"type": "integer", "then": {"const": 0}}, [0, 12], ["a"]),
    "dependentSchemas": (
        {**D2020, "properties": {"a": {}, "b": {}}, "dependentSchemas": {"b": {"required": ["a"]}}},
        [{}, {"a": 1}, {"a": 1, "b": 1}],
        [{"b": 1}],
    ),
    "annotations mean nothing": (
        {
            "title": "t",
            "description": "d",
            "default": 1,
            "examples": [2],
            "deprecated": True,
            "$comment": "c",
            **INT,
        },
        [1],
        ["a"],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_group(name):
    check(*GROUPS[name])


def test_nullable_is_of_openapi_and_adds_null():
    nullable = {"type": "object", "nullable": True, "required": ["a"]}
    check_ours(nullable, [None, {"a": 1}], [{}, "a"])
    within = {"properties": {"a": {"type": "integer", "nullable": True}}}
    check_ours(within, [{"a": None}, {"a": 1}], [{"a": "x"}])
