"""The standard's own kinds of cases, keyword by keyword: what each draft lets pass, and what it does not.

Every instance is judged by `jsonschema` as well, so that no case here can be wrong about the standard.
Instances have their properties in the schema's order, and integers without a point, as grammars want them.
"""

from __future__ import annotations

import jsonschema
import pytest

from tests.structured.oracle import check

D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
D6 = {"$schema": "http://json-schema.org/draft-06/schema#"}
D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
D2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
INT, STR, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
SHUT = {"additionalProperties": False}

GROUPS = {
    "type: a list of one": ({"type": ["string"]}, ["a", ""], [1, None, ["a"]]),
    "type: several containers": ({"type": ["array", "object"]}, [[1], {"a": 1}], [1, "a", None]),
    "type: integer beside number": ({"type": ["integer", "number"]}, [1, 1.5, -2e30], ["1", True]),
    "boolean schema true": ({"properties": {"a": True}}, [{"a": 1}, {"a": None}], []),
    "boolean schema false": ({"properties": {"a": False}}, [{}, {"b": 1}, 1], [{"a": 1}]),
    "properties: with a boolean and a reference": (
        {"$defs": {"i": INT}, "properties": {"a": {"$ref": "#/$defs/i"}, "b": True, "c": False}},
        [{"a": 1, "b": "x"}, {}, []],
        [{"a": "x"}, {"c": 1}],
    ),
    "properties: names with marks of every kind": (
        {"properties": {'a"b': INT, "c\\d": INT, "e\nf": INT, "~/": INT, "ü😀": INT}, **SHUT},
        [{'a"b': 1, "c\\d": 2, "e\nf": 3, "~/": 4, "ü😀": 5}],
        [{'a"b': "1"}, {"ü": 1}],
    ),
    "properties: names that Python objects have": (
        {"properties": {"__proto__": INT, "constructor": INT, "toString": INT}},
        [{}, {"__proto__": 1, "constructor": 2}],
        [{"__proto__": "x"}, {"toString": None}],
    ),
    "required: default is nothing": ({"properties": {"a": {}}}, [{}, {"a": 1}], []),
    "required: empty list": ({"properties": {"a": {}}, "required": []}, [{}], []),
    "required: ignores what is no object": ({"required": ["a"]}, [[], "a", 1, {"a": None}], [{}, {"b": 1}]),
    "additionalProperties: false beside patterns": (
        {"properties": {"a": {}}, "patternProperties": {"^v": INT}, **SHUT},
        [{"a": 1, "v1": 2}, {"vv": 1}, [1], "x"],
        [{"q": 1}, {"v": "x"}, {"a": 1, "b": 2}],
    ),
    "additionalProperties: a schema alone": (
        {"additionalProperties": {"type": "boolean"}},
        [{"x": True}, {}, 1],
        [{"x": 1}],
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
    "propertyNames: lengths": (
        {"propertyNames": {"maxLength": 3}},
        [{"f": 1, "foo": 2}, {}, 12],
        [{"foobar": 1}],
    ),
    "propertyNames: pattern": ({"propertyNames": {"pattern": "^a+$"}}, [{"a": 1, "aa": 2}], [{"aaA": 1}]),
    "propertyNames: listed": ({"propertyNames": {"enum": ["x", "y"]}}, [{"x": 1}, {"y": 1}], [{"z": 1}]),
    "propertyNames: false": ({"propertyNames": False}, [{}, [1]], [{"a": 1}]),
    "minProperties": ({"minProperties": 1}, [{"a": 1}, [], "", 12], [{}]),
    "maxProperties: zero": ({"maxProperties": 0}, [{}, [1, 2]], [{"a": 1}]),
    "maxProperties": (
        {"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2, **SHUT},
        [{}, {"a": 1}, {"b": 1, "c": 1}],
        [{"a": 1, "b": 1, "c": 1}],
    ),
    "items: boolean": ({"items": False}, [[], {}, "x"], [[1], [None]]),
    "items: nested": (
        {"items": {"type": "array", "items": {"type": "array", "items": INT}}},
        [[], [[]], [[[1], [2, 3]], []]],
        [[1], [[1]], [[["x"]]]],
    ),
    "items: a list, draft 4": ({**D4, "items": [INT, STR]}, [[1, "a"], [1], [], [1, "a", True]], [["a", 1]]),
    "items: a list with booleans, draft 6": ({**D6, "items": [True, False]}, [[1], []], [[1, "a"]]),
    "additionalItems: schema, draft 7": (
        {**D7, "items": [{}, STR], "additionalItems": INT},
        [[None, "a", 3, 4], [None]],
        [[None, "a", "b"]],
    ),
    "additionalItems: without a list it means nothing": (
        {**D2019, "items": INT, "additionalItems": False},
        [[1, 2, 3]],
        [["a"]],
    ),
    "prefixItems: more are free": ({**D2020, "prefixItems": [INT]}, [[], [1], [1, "a"], {}], [["a"]]),
    "prefixItems: items speak of the rest": (
        {**D2020, "prefixItems": [STR], "items": INT},
        [["x", 2, 3], ["x"]],
        [["x", "y"], [1]],
    ),
    "contains: of a bound": ({"contains": {"minimum": 5}}, [[3, 4, 5], [5, 6]], [[3, 4], []]),
    "contains: true and false": ({"contains": True}, [["a"]], [[]]),
    "contains: with items": (
        {"items": {"type": "integer", "multipleOf": 2}, "contains": {"type": "integer", "multipleOf": 3}},
        [[6, 2], [12]],
        [[3], [2, 4], [1, 5], []],
    ),
    "minContains: 0 asks for nothing": (
        {**D2020, "contains": {"const": 1}, "minContains": 0},
        [[], [2], [1]],
        [],
    ),
    "minContains and maxContains": (
        {**D2020, "contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1, 1], [1, 2, 1, 1]],
        [[1], [1, 1, 1, 1], []],
    ),
    "minItems": ({"minItems": 1}, [[1], "", {}], [[]]),
    "maxItems": ({"maxItems": 2}, [[1], [1, 2], "foobar"], [[1, 2, 3]]),
    "uniqueItems: numbers that are equal": (
        {"items": {"enum": [1, 2, "1", None, True]}, "uniqueItems": True},
        [[1, True], [1, "1", None], []],
        [[1, 1], ["1", 2, "1"], [None, None]],
    ),
    "enum: unlike kinds": (
        {"enum": [6, "foo", [], True, {"foo": 12}]},
        [[], {"foo": 12}, 6, True],
        [None, {"foo": 12, "b": 42}, "fo", 7, [1]],
    ),
    "enum: false is not 0": ({"enum": [False]}, [False], [0, [0], None]),
    "enum: within properties": (
        {"properties": {"a": {"enum": ["x"]}, "b": {"enum": ["y"]}}, "required": ["b"]},
        [{"a": "x", "b": "y"}, {"b": "y"}],
        [{"a": "z", "b": "y"}, {"a": "x"}, {}],
    ),
    "const: an object, an array, null": (
        {"anyOf": [{"const": {"a": [True]}}, {"const": [{"b": 0}]}, {"const": None}]},
        [{"a": [True]}, [{"b": 0}], None],
        [{"a": [1]}, [{"b": False}], [], {}, 0],
    ),
    "minLength and maxLength": (
        {"minLength": 2, "maxLength": 3},
        ["ab", "é😀x", 1, []],
        ["a", "abcd", "😀"],
    ),
    "pattern: not anchored": ({"pattern": "a+"}, ["xxaayy", True, {}], ["xyz", ""]),
    "minimum and maximum: negative": (
        {"type": "integer", "minimum": -2, "maximum": -1},
        [-1, -2],
        [0, -3, 1],
    ),
    "minimum: ignores what is no number": ({"minimum": 1.1}, [1.1, 2.6, "x", None], [0.6, 1]),
    "exclusiveMinimum and exclusiveMaximum": (
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 4},
        [2, 3],
        [1, 4, 0],
    ),
    "exclusiveMinimum: a flag, draft 4": (
        {
            **D4,
            "type": "integer",
            "minimum": 1,
            "exclusiveMinimum": True,
            "maximum": 3,
            "exclusiveMaximum": False,
        },
        [2, 3],
        [1, 4],
    ),
    "multipleOf: by int": ({"type": "integer", "multipleOf": 2}, [10, 0, -4], [7, 1, -3]),
    "multipleOf: small number": ({"multipleOf": 0.25}, [0.25, 1.5, 2, "x"], [0.3, 1.1]),
    "$ref: from the root down": (
        {"properties": {"a": {"$ref": "#"}}, **SHUT},
        [{"a": {}}, {"a": {"a": {}}}],
        [{"b": 1}, {"a": {"b": 1}}],
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
    "$ref: siblings are silent, draft 7": (
        {
            **D7,
            "definitions": {"a": {"type": "array"}},
            "properties": {"x": {"$ref": "#/definitions/a", "maxItems": 1}},
        },
        [{"x": [1, 2]}],
        [{"x": 1}],
    ),
    "$ref: by $anchor": (
        {**D2020, "$ref": "#here", "$defs": {"x": {"$anchor": "here", **INT}}},
        [1],
        ["a"],
    ),
    "$ref: by id of a definition, draft 4": (
        {**D4, "properties": {"a": {"$ref": "#it"}}, "definitions": {"x": {"id": "#it", "type": "integer"}}},
        [{"a": 1}],
        [{"a": "x"}],
    ),
    "$ref: a tree": (
        {
            "type": "object",
            "properties": {"value": INT, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
            "required": ["value"],
            **SHUT,
        },
        [{"value": 1}, {"value": 1, "left": {"value": 2, "right": {"value": 3}}}],
        [{}, {"value": 1, "left": {}}, {"value": 1, "left": 2}],
    ),
    "allOf: with its base": (
        {
            "properties": {"b": INT},
            "required": ["b"],
            "allOf": [{"properties": {"a": STR}, "required": ["a"]}],
        },
        [{"b": 1, "a": "x"}],
        [{"b": 1}, {"a": "x"}, {"b": "x", "a": "x"}],
    ),
    "allOf: simple bounds": (
        {"type": "integer", "allOf": [{"maximum": 30}, {"minimum": 20}]},
        [25, 20],
        [35, 19],
    ),
    "allOf: a false one beside a true one": ({"anyOf": [{"allOf": [True, False]}, NULL]}, [None], [1, "a"]),
    "anyOf: with its base": (
        {"type": "string", "anyOf": [{"maxLength": 2}, {"minLength": 4}]},
        ["ab", "abcd"],
        ["abc", 3],
    ),
    "anyOf: of objects": (
        {
            "type": "object",
            "anyOf": [
                {"properties": {"a": INT}, "required": ["a"]},
                {"properties": {"b": STR}, "required": ["b"]},
            ],
        },
        [{"a": 1}, {"b": "x"}],
        [{}, {"a": "x"}, {"c": 1}],
    ),
    "oneOf: exactly one": ({"oneOf": [INT, {"type": "number", "minimum": 2}]}, [1, 2.5], [3, 1.5, "a"]),
    "oneOf: all true": ({"anyOf": [NULL, {"oneOf": [True, True]}]}, [None], [1]),
    "oneOf: by what is required": (
        {"type": "object", "oneOf": [{"required": ["a", "b"]}, {"required": ["a", "c"]}]},
        [{"a": 1, "b": 2}, {"a": 1, "c": 3}],
        [{"a": 1}, {"b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}],
    ),
    "not: a type": ({"not": INT}, ["foo", 1.5, None, {}], [1]),
    "not: several types": ({"not": {"type": ["integer", "boolean"]}}, ["foo"], [1, True]),
    "not: a property": ({"not": {"properties": {"a": STR}}}, [{"a": 1}], [1, "x", {}, {"a": "x"}, {"b": 1}]),
    "not: false lets all pass": ({"not": False}, [1, "a", None, {}], []),
    "not: twice": ({"not": {"not": {"type": "string"}}}, ["a"], [1]),
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
    "if: on a property": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b"]}, "n": {}},
            "required": ["kind", "n"],
            "if": {"properties": {"kind": {"const": "a"}}},
            "then": {"properties": {"n": INT}},
            "else": {"properties": {"n": STR}},
        },
        [{"kind": "a", "n": 1}, {"kind": "b", "n": "x"}],
        [{"kind": "a", "n": "x"}, {"kind": "b", "n": 1}],
    ),
    "if: then without if means nothing": ({"type": "integer", "then": {"const": 0}}, [0, 12], ["a"]),
    "dependentRequired": (
        {**D2019, "properties": {"a": {}, "b": {}}, "dependentRequired": {"b": ["a"]}},
        [{}, {"a": 1}, {"a": 1, "b": 2}, [], "b"],
        [{"b": 2}],
    ),
    "dependencies: names and schemas, draft 7": (
        {
            **D7,
            "properties": {"a": {}, "b": {}, "c": {}},
            "dependencies": {"b": ["a"], "c": {"properties": {"a": INT}}},
        },
        [{}, {"a": 1, "b": 2}, {"a": 1, "c": 1}, {"c": 1}],
        [{"b": 2}, {"a": "x", "c": 1}],
    ),
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
    schema, valid, invalid = GROUPS[name]
    judge = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
    assert all(judge.is_valid(value) for value in valid)
    assert not any(judge.is_valid(value) for value in invalid)
    check(schema, valid, invalid)


def test_nullable_is_of_openapi_and_adds_null():
    check({"type": "object", "nullable": True, "required": ["a"]}, [None, {"a": 1}], [{}, "a"])
    check({"properties": {"a": {"type": "integer", "nullable": True}}}, [{"a": None}, {"a": 1}], [{"a": "x"}])
