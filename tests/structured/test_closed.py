"""Objects that declare some properties and do not mention others, which the server leaves out."""

from __future__ import annotations

import jsonschema
import pytest

from openai_cpu_server.structured.options import Additional, Options
from tests.structured.making import schema_to_lark
from tests.structured.oracle import check_ours, table

CLOSED = Options(additional=Additional.CLOSED)
INT, STR = {"type": "integer"}, {"type": "string"}
OBJECT = {"type": "object"}


def has(**properties):
    return {**OBJECT, "properties": properties}


def check(schema, accepted, rejected):
    """`rejected` may hold values that the schema itself allows."""
    judge = jsonschema.Draft202012Validator(schema)
    assert [value for value in accepted if not judge.is_valid(value)] == []
    check_ours(schema, accepted, rejected, CLOSED)


AB = [{}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}]

test_cases = table({
    "declared names only": [
        (has(a=INT), [{}, {"a": 1}], [{"z": 1}, {"a": 1, "z": 1}, {"a": "x"}]),
        ({"properties": {"a": INT}}, [{"a": 1}, 3, "x"], [{"z": 1}]),
        (has(), [{}], [{"z": 1}])],
    "inner objects": [
        (has(a=has(b=INT), c={"type": "array", "items": has(d=INT)}),
         [{"a": {"b": 1}, "c": [{"d": 1}]}], [{"a": {"z": 1}}, {"c": [{"z": 1}]}])],
    "explicit words stay": [
        ({**has(a=INT), "additionalProperties": True}, [{"a": 1, "z": None}, {"z": 1}], [{"a": "x"}]),
        ({**has(a=INT), "additionalProperties": {}}, [{"a": 1, "z": None}], [{"a": "x"}]),
        ({**has(a=INT), "additionalProperties": STR}, [{"a": 1, "z": "x"}], [{"z": 1}]),
        ({**has(a=INT), "additionalProperties": False}, [{"a": 1}], [{"z": 1}]),
        ({**has(a=INT), "unevaluatedProperties": True}, [{"a": 1, "z": None}], [{"a": "x"}]),
        ({**has(a=INT), "unevaluatedProperties": STR}, [{"a": 1, "z": "x"}], [{"z": 1}])],
    "nothing declared": [
        (OBJECT, [{}, {"z": 1}], [1]),
        ({**OBJECT, "required": ["x"]}, [{"x": 1}, {"x": 1, "z": 2}], [{}]),
        ({**OBJECT, "patternProperties": {"^x-": INT}}, [{"x-a": 1}, {"z": "s"}], [{"x-a": "s"}])],
    "required names without a schema": [
        ({**has(a=INT), "required": ["a", "x"]}, [{"a": 1, "x": None}],
         [{"a": 1}, {"a": 1, "x": 1, "z": 1}])],
    "patterns": [
        ({**has(a=INT), "patternProperties": {"^x-": {}}}, [{"a": 1, "x-b": None}, {"x-": 1}], [{"z": 1}]),
        ({**has(a=INT), "patternProperties": {"^x-": STR}}, [{"a": 1, "x-b": "s"}], [{"x-b": 1}, {"z": 1}])],
    "a member does not close another": [
        ({"allOf": [has(a=INT), has(b=STR)]}, AB, [{"z": 1}]),
        ({**has(a=INT), "allOf": [{"properties": {"b": STR}}]}, AB, [{"z": 1}]),
        ({"$ref": "#/$defs/base", "properties": {"b": STR}, "$defs": {"base": has(a=INT)}}, AB, [{"z": 1}]),
        ({"allOf": [{"$ref": "#/$defs/base"}, {"$ref": "#/$defs/more"}],
          "$defs": {"base": has(a=INT), "more": {"allOf": [{"$ref": "#/$defs/inner"}]}, "inner": has(b=STR)}},
         AB, [{"z": 1}])],
    "a member that is open opens all": [
        ({"allOf": [has(a=INT), {**has(b=STR), "additionalProperties": True}]},
         [*AB, {"a": 1, "z": 1}], [{"a": "x"}]),
        ({"$ref": "#/$defs/base", "additionalProperties": True, "$defs": {"base": has(a=INT)}},
         [{"a": 1, "z": 1}], [{"a": "x"}]),
        ({"$ref": "#/$defs/base", "unevaluatedProperties": True, "$defs": {"base": has(a=INT)}},
         [{"a": 1, "z": 1}], [{"a": "x"}])],
    "a member that is shut shuts all": [
        ({"allOf": [has(a=INT, b=INT), {**has(a=INT), "additionalProperties": False}]},
         [{}, {"a": 1}], [{"b": 1}, {"z": 1}]),
        ({"allOf": [has(a=INT), has(b=STR)], "unevaluatedProperties": False}, AB, [{"z": 1}])],
    "alternatives": [
        ({"anyOf": [{**has(a=INT), "required": ["a"]}, {**has(b=STR), "required": ["b"]}]},
         [{"a": 1}, {"b": "x"}], [{"a": 1, "z": 1}, {}, {"z": 1}]),
        ({**has(a=INT), "anyOf": [{"required": ["a"]}, {**has(b=STR), "required": ["b"]}]},
         [{"a": 1}, {"b": "x"}, {"a": 1, "b": "x"}], [{}, {"z": 1}]),
        ({**has(a=INT), "anyOf": [{}, has(b=STR)]}, [{"a": 1}], [{"z": 1}]),
        ({**has(a=INT), "anyOf": [{"minProperties": 1}, {"minProperties": 1, "properties": {"b": STR}}]},
         [{"a": 1}, {"b": "x"}], [{}, {"z": 1}]),
        ({"oneOf": [{"properties": {"k": {"const": 1}, "a": INT}, "required": ["k"], **OBJECT},
                    {"properties": {"k": {"const": 2}, "b": STR}, "required": ["k"], **OBJECT}]},
         [{"k": 1, "a": 1}, {"k": 2, "b": "x"}], [{"k": 1, "b": "x"}, {"k": 2, "z": 1}])],
    "alternatives whose difference is an undeclared name keep it": [
        ({"oneOf": [has(a=INT), {**has(b=INT)}]}, [{"a": 1, "b": "x"}], [{"a": 1}, {"a": 1, "b": 1}])],
    "conditions": [
        ({**has(a=INT), "if": {"required": ["a"]}, "then": {"properties": {"b": STR}, "required": ["b"]}},
         [{}, {"a": 1, "b": "x"}], [{"a": 1}, {"z": 1}]),
        ({**has(a=INT), "dependentRequired": {"a": ["x"]}}, [{}, {"a": 1, "x": 2}], [{"a": 1}, {"z": 1}]),
        ({**has(a=INT), "dependentSchemas": {"a": has(b=STR)}}, [{}, {"a": 1, "b": "x"}],
         [{"a": 1, "b": 1}, {"z": 1}])],
    "counts that declared names cannot reach": [
        ({**has(a=INT), "minProperties": 1}, [{"a": 1}], [{}, {"z": 1}]),
        ({**has(a=INT), "minProperties": 2}, [{"a": 1, "z": 1}], [{"a": 1}, {}]),
        ({**has(a=INT, b=STR), "minProperties": 2}, [{"a": 1, "b": "x"}], [{"a": 1}, {"a": 1, "z": 1}])],
    "names of a language": [
        ({**has(a=INT), "propertyNames": {"pattern": "^[a-c]$"}}, [{"a": 1}], [{"b": 1}]),
        ({**has(a=INT), "propertyNames": {"enum": ["a", "b"]}}, [{"a": 1, "b": 1}], [{"z": 1}])],
    "negations": [
        ({**has(a=INT), "not": has(a={"const": 1})}, [{"a": 2}], [{"a": 1}, {}, {"z": 1}]),
        ({**has(a=INT), "not": {"additionalProperties": INT}}, [{"z": "x"}], [{"a": 1}])],
}, check)  # fmt: skip


PERSON = {
    "$defs": {"Pet": {**has(name=STR, age=INT), "required": ["name"], "title": "Pet"}},
    **has(name=STR, pets={"type": "array", "items": {"$ref": "#/$defs/Pet"}, "maxItems": 2}),
    "required": ["name", "pets"],
    "title": "Person",
}
"""A schema as pydantic writes it."""


@pytest.mark.parametrize("schema", [PERSON, {"allOf": [has(a=INT), has(b=STR)]}, has(a=has(b=INT))])
def test_a_closed_grammar_is_smaller(schema):
    assert len(schema_to_lark(schema, CLOSED)) < len(schema_to_lark(schema))
