"""unevaluatedProperties and unevaluatedItems beside schemas that apply in place."""

import pytest

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import InvalidSchema, Options, UnsupportedSchema
from tests.structured.oracle import check, check_ours

D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
D2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
INT, STR = {"type": "integer"}, {"type": "string"}
OBJECT, ARRAY = {"type": "object"}, {"type": "array"}
CLOSED, CLOSED_ITEMS = {"unevaluatedProperties": False}, {"unevaluatedItems": False}


def has(*names, **properties):
    return {"properties": properties, "required": list(names)}


def kind(name, **properties):
    return has("kind", kind={"const": name}, **properties)


CLOSED_OBJECTS = {
    "allOf": ({"properties": {"a": INT}, "allOf": [has(b=STR), has("c", c=INT)]},
         [{"c": 1}, {"a": 1, "b": "x", "c": 2}], [{}, {"c": 1, "d": 1}, {"b": 1, "c": 1}]),
    "anyOf: all that pass count": ({"anyOf": [has(a=INT), has("b", b=INT), has("c", c=STR)]},
         [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": "x"}, {"b": 1, "c": "x"}, {}],
         [{"b": "x"}, {"a": 1, "b": "x"}, {"d": 1}, {"a": "x", "b": 1}, {"b": 1, "c": 1}]),
    "anyOf: options that evaluate nothing": (
         {"properties": {"a": INT, "b": INT}, "anyOf": [has("a"), has("b")]}, [{"a": 1}, {"a": 1, "b": 1}],
         [{}, {"a": 1, "c": 1}]),
    "anyOf: one evaluates nothing": ({"properties": {"a": INT}, "anyOf": [has("a"), has("b", b=INT)]},
         [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], [{}, {"a": 1, "b": "x"}, {"c": 1}]),
    "anyOf: nested": (
         {"anyOf": [{**has("a", a=INT), "anyOf": [has("b", b=INT), has("c", c=INT)]}, has("d", d=INT)]},
         [{"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"d": 1}, {"a": 1, "b": 1, "d": 1}],
         [{"a": 1}, {"b": 1, "d": 1}, {"a": 1, "b": 1, "c": "x"}, {"a": 1, "d": 1}]),
    "anyOf: one that looks at everything": ({"anyOf": [has("a", a=INT),
          {"required": ["z"], "additionalProperties": {"type": ["integer", "null"]}}]},
         [{"a": 1}, {"z": 1}, {"z": None, "y": 2}, {"z": None, "a": 1}],
         [{"a": 1, "y": 1}, {"z": "x"}, {"a": 1, "z": "x"}]),
    "oneOf: by kind": ({"properties": {"id": INT}, "oneOf": [kind("a", x=INT), kind("b", y=INT)]},
         [{"id": 1, "kind": "a", "x": 1}, {"kind": "b"}, {"kind": "b", "y": 1}],
         [{"kind": "a", "y": 1}, {"kind": "c"}, {"kind": "a", "z": 1}, {"x": 1}]),
    "oneOf: that overlap": ({"oneOf": [has("a", a=INT), has("b", b=INT)]}, [{"a": 1}, {"b": 1}],
         [{}, {"a": 1, "b": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": 1}]),
    "if: then and else": ({"if": kind("a"), "then": has(x=INT), "else": has(y=INT)},
         [{"kind": "a"}, {"kind": "a", "x": 1}, {"y": 1}, {}],
         [{"kind": "b"}, {"kind": "a", "y": 1}, {"x": 1}, {"kind": "a", "x": "1"}]),
    "if: alone, it evaluates where it passes": ({"if": has(a=INT)}, [{}, {"a": 1}], [{"a": "x"}, {"b": 1}]),
    "if: many, on one property": ({**has("kind", kind={"enum": list("abcdefgh")}),
          "allOf": [{"if": kind(k), "then": has("v" + k, **{"v" + k: INT})} for k in "abcdefgh"]},
         [{"kind": "a", "va": 1}, {"kind": "h", "vh": 1}],
         [{"kind": "a", "vb": 1}, {"kind": "a", "va": 1, "vb": 1}, {"kind": "a"}, {"kind": "i"}]),
    "dependentSchemas": ({**D2019, "properties": {"a": INT}, "dependentSchemas": {"a": has("b", b=INT)}},
         [{}, {"a": 1, "b": 1}], [{"a": 1}, {"b": 1}, {"a": 1, "b": 1, "c": 1}]),
    "not evaluates nothing": ({"properties": {"a": INT}, "not": {"not": has(b=INT)}}, [{"a": 1}, {}],
         [{"b": 1}]),
    "additionalProperties evaluates all": ({"allOf": [{"additionalProperties": INT}]}, [{}, {"a": 1, "z": 2}],
         [{"a": "x"}]),
    "additionalProperties: of its own": ({"allOf": [has(a=INT)], "additionalProperties": STR}, [{"b": "x"}],
         [{"a": 1}, {"b": 1}]),
    "one within another": ({"allOf": [{"allOf": [has(a=INT)], "unevaluatedProperties": INT}]},
         [{"a": 1, "z": 1}], [{"z": "x"}]),
    "names that match patterns of options": (
         {"anyOf": [{"required": ["a"], "patternProperties": {"^a": INT}}, has("b", b=INT)]},
         [{"a": 1}, {"a": 1, "ab": 1}, {"b": 1}, {"b": 1, "a": 1}],
         [{"ab": 1, "b": 1}, {"a": 1, "ab": "x"}, {"c": 1}]),
}  # fmt: skip
OTHERS = {
    "allOf: properties after it": ({**CLOSED, "allOf": [has(a=INT)], "properties": {"b": INT}},
         [{"a": 1, "b": 1}, {}, 3], [{"c": 1}]),
    "$ref: a base that is extended": ({"$defs": {"base": {**OBJECT, **has("id", id=INT)}},
          "$ref": "#/$defs/base", "properties": {"name": STR}, **CLOSED}, [{"id": 1}, {"id": 1, "name": "x"}],
         [{"name": "x"}, {"id": 1, "age": 2}, {"id": "x"}, 1]),
    "$ref: one that leads to others": ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}],
          "properties": {"a": INT}}, "b": {"$ref": "#/$defs/c", "patternProperties": {"^x": INT}},
          "c": has(c=INT)}, "$ref": "#/$defs/a", **CLOSED}, [{"c": 1, "a": 1, "x1": 1}, {}],
         [{"d": 1}, {"x1": "a"}]),
    "$ref: a tree that is closed where it is used": ({"$defs": {"tree": {"type": "object",
          "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}}, "$ref": "#/$defs/tree",
          "properties": {"value": INT}, "required": ["value"], **CLOSED},
         [{"kids": [{"value": 1}, {"kids": [], "value": 2}], "value": 3}],
         [{"kids": [{"value": 1, "x": 1}], "value": 1}, {"value": 1, "x": 1}]),
    "$dynamicRef": ({**D2020, "$defs": {"it": {"$dynamicAnchor": "it", **has(a=INT)}}, "$dynamicRef": "#it",
          "properties": {"b": INT}, **CLOSED}, [{"a": 1, "b": 1}], [{"c": 1}]),
    "a schema instead of false": ({**OBJECT, "allOf": [has(a=STR)], "unevaluatedProperties": INT},
         [{"a": "x", "z": 1}, {"z": 1}], [{"a": "x", "z": "y"}, {"a": 1}]),
    "true requires nothing": ({"allOf": [has(a=INT)], "unevaluatedProperties": True}, [{"z": 1}],
         [{"a": "x"}]),
    "anyOf: one of another type": ({"anyOf": [STR, has(a=INT)], **CLOSED}, ["x", {"a": 1}, {}, 1],
         [{"b": 1}]),
    "not: a closed one": ({**OBJECT, **has(a=INT, b=INT), "additionalProperties": False,
          "not": {"allOf": [has(a=INT)], **CLOSED}}, [{"b": 1}, {"a": 1, "b": 1}],
         [{"a": 1}, {}, {"a": "x"}]),
    "cousins are not seen": ({**OBJECT, "allOf": [has(a=INT), {**has(b=INT), "allOf": [True], **CLOSED}]},
         [{"b": 1}, {}], [{"a": 1}, {"a": 1, "b": 1}]),
    "within a property": (
         {"properties": {"p": {**OBJECT, "anyOf": [has("a", a=INT), has("b", b=INT)], **CLOSED}}},
         [{"p": {"a": 1}}, {"q": 1}], [{"p": {"c": 1}}, {"p": {"a": 1, "c": 1}}]),
    "values of const evaluate nothing": (
         {**OBJECT, "allOf": [{"const": {"a": 1}}], "unevaluatedProperties": INT}, [{"a": 1}],
         [{}, {"a": 2}]),
    "items: a schema instead of false": (
         {**ARRAY, "allOf": [{"prefixItems": [STR]}], "unevaluatedItems": INT}, [["x"], ["x", 1, 2], []],
         [[1], ["x", "y"]]),
    "items: $ref": (
         {"$defs": {"pair": {**ARRAY, "prefixItems": [INT, INT]}}, "$ref": "#/$defs/pair", **CLOSED_ITEMS},
         [[], [1, 2]], [[1, 2, 3], "x"]),
    "items: not: a closed one": (
         {**ARRAY, "items": INT, "not": {"allOf": [{"prefixItems": [True]}], **CLOSED_ITEMS}},
         [[1, 2], [1, 2, 3]], [[], [1], ["x", 1]]),
}  # fmt: skip

CLOSED_ARRAYS = {
    "allOf": ({"prefixItems": [INT], "allOf": [{"prefixItems": [True, STR]}]}, [[], [1], [1, "x"]],
         [["x"], [1, 2], [1, "x", 3]]),
    "items evaluate all": ({"allOf": [{"items": INT}]}, [[], [1, 2]], [["x"]]),
    "a list of items, draft 2019-09": ({**D2019, "items": [INT], "anyOf": [{"items": [True, STR]}, True]},
         [[1], [1, "x"]], [[1, 2], [1, "x", 1]]),
    "anyOf: the longest that passes": (
         {"anyOf": [{"prefixItems": [INT]}, {"prefixItems": [True, STR, True]}]},
         [[1], ["x", "x"], [1, "x", 3], []], [[1, 2], ["x", 1], [1, 2, 3], [1, "x", 3, 4]]),
    "oneOf": ({"minItems": 1, "oneOf": [{"prefixItems": [INT]}, {"prefixItems": [STR, STR]}]},
         [[1], ["x"], ["x", "y"]], [[1, 2], ["x", 1], ["x", "y", "z"]]),
    "if: then and else": ({"if": {"prefixItems": [{"const": 1}]}, "then": {"prefixItems": [True, STR]},
          "else": {"prefixItems": [STR]}}, [[1], [1, "x"], ["x"], []],
         [[2], ["x", "y"], [1, 2], [1, "x", 1]]),
    "contains evaluates what it is about": ({"prefixItems": [INT], "contains": STR},
         [[1, "x"], [1, "x", "y"]], [[1], [1, 2, "x"], [1, "x", None], []]),
    "contains: of several options": ({"anyOf": [{"contains": INT}, {"contains": STR}]},
         [[1], ["x"], [1, "x", 2]], [[], [None], [1, None]]),
    "contains: with minContains 0": ({"contains": INT, "minContains": 0}, [[], [1, 2]], [["x"], [1, "x"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED_OBJECTS)
def test_properties_of_closed_objects(name):
    schema, valid, invalid = CLOSED_OBJECTS[name]
    check({**OBJECT, **schema, **CLOSED}, valid, invalid)


@pytest.mark.parametrize("name", OTHERS)
def test_open_and_other_schemas(name):
    check(*OTHERS[name])


@pytest.mark.parametrize("name", CLOSED_ARRAYS)
def test_items_of_closed_arrays(name):
    schema, valid, invalid = CLOSED_ARRAYS[name]
    check({**ARRAY, **schema, **CLOSED_ITEMS}, valid, invalid)


def test_contains_evaluates_nothing_in_draft_2019_09():
    """Check without `jsonschema`, which does not distinguish the two drafts here."""
    schema = {**D2019, **ARRAY, "items": [True], "contains": STR, **CLOSED_ITEMS}
    check_ours(schema, [["x"]], [[1], [1, "x"], ["x", "y"]])


def test_the_order_is_that_of_the_schema():
    schema = {"allOf": [has("b", b=INT), has("a", a=INT)], "properties": {"c": INT}, **OBJECT, **CLOSED}
    check_ours(schema, [{"b": 1, "a": 1, "c": 1}], [{"a": 1, "b": 1, "c": 1}, {"c": 1, "b": 1, "a": 1}])


def test_a_left_out_keyword_evaluates_everything():
    """No property counts as unevaluated while those that a subschema evaluates are unknown."""
    schema = {**OBJECT, "allOf": [{"patternProperties": {r"(a)\1": INT}}], **CLOSED}
    with pytest.raises(UnsupportedSchema, match="patternProperties"):
        compile_schema(schema)
    check_ours(schema, [{"b": 1}, {"z": 1}], [1], Options(strict=False))


def test_a_schema_within_itself_is_refused():
    for schema in (
        {"$ref": "#", **CLOSED},
        {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, has(b=INT)]}}, "$ref": "#/$defs/a", **CLOSED},
    ):
        with pytest.raises(InvalidSchema):
            compile_schema(schema)
