"""properties, required, additionalProperties, patternProperties, propertyNames, counts, dependencies."""

import itertools

import pytest

from openai_cpu_server.structured.options import Options, PropertyOrder
from tests.structured.making import check_schema
from tests.structured.oracle import accepts, check, check_ours, check_texts, table

INT, STR = {"type": "integer"}, {"type": "string"}
ANY_ORDER = Options(order=PropertyOrder.ANY)


def closed(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


test_cases = table({
    "additional properties with a schema": [
        ({"type": "object", "properties": {"a": STR}, "additionalProperties": INT},
         [{"a": "x", "b": 1, "c": 2}, {"b": 1}], [{"b": "x"}, {"a": 1}])],
    "additional properties do not look into allOf": [
        ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": {"type": "boolean"}},
         [{"a": True}, {}], [{"a": 1}])],
    "properties with a boolean, a reference and the name of a keyword": [
        ({"$defs": {"i": INT}, "properties": {"a": {"$ref": "#/$defs/i"}, "b": True, "c": False}},
         [{"a": 1, "b": "x"}, {}, []], [{"a": "x"}, {"c": 1}]),
        ({"properties": {"$ref": STR}}, [{"$ref": "a"}], [{"$ref": 2}])],
    "a required name that is not declared": [
        ({"type": "object", "required": ["x"]}, [{"x": 1}, {"x": None, "y": 2}], [{}, {"y": 1}]),
        ({"type": "object", "required": ["x"], "additionalProperties": INT}, [{"x": 1}], [{"x": "a"}, {}])],
    "false forbids a property": [
        ({"type": "object", "properties": {"a": False, "b": INT}}, [{}, {"b": 1}, {"c": 1}],
         [{"a": 1}, {"a": None, "b": 1}])],
    "pattern properties": [
        ({"type": "object", "properties": {"ab": STR},
          "patternProperties": {"^a": {"minLength": 2}, "z$": INT}, "additionalProperties": False},
         [{"ab": "xx"}, {"ac": "yy"}, {"z": 1}, {"bz": 1}, {}],
         [{"ab": "x"}, {"ac": "y"}, {"z": "x"}, {"q": 1}, {"az": "xx"}])],
    "several patterns that match at once, and one for nothing": [
        ({"patternProperties": {"a": INT, "aa": {"maximum": 20}}}, [{"a": 21}, {"aaaa": 18}, {"b": "x"}, []],
         [{"a": "x"}, {"aaaa": 31}, {"aa": 21}]),
        ({"patternProperties": {"^f": True, "^b": False}}, [{"foo": 1}, {}], [{"bar": 2}])],
    "a pattern that is a name": [
        ({"type": "object", "patternProperties": {"^MD5$": STR, "^SHA$": INT}, "additionalProperties": False},
         [{}, {"MD5": "x"}, {"MD5": "x", "SHA": 1}], [{"MD5": 1}, {"MD4": "x"}])],
    "pattern properties beside open ones": [
        ({"type": "object", "patternProperties": {"^n_": INT}}, [{"n_a": 1, "x": "y"}], [{"n_a": "y"}])],
    "property names": [
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}}, [{}, {"abc": 1}],
         [{"abcd": 1}, {"A": 1}]),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
         [{"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
        ({"type": "object", "propertyNames": False}, [{}], [{"a": 1}])],
    "min properties": [
        (closed({"a": INT, "b": INT, "c": INT}, minProperties=2), [{"a": 1, "c": 1}, {"b": 1, "c": 1}],
         [{}, {"b": 1}]),
        ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
        ({"type": "object", "properties": {"a": INT}, "minProperties": 2}, [{"a": 1, "x": 1}],
         [{"a": 1}, {}])],
    "max properties": [
        (closed(dict.fromkeys("abcd", INT), maxProperties=2), [{}, {"a": 1, "d": 1}],
         [{"a": 1, "b": 1, "c": 1}]),
        ({"type": "object", "maxProperties": 1}, [{}, {"x": 1}], [{"x": 1, "y": 1}]),
        ({"maxProperties": 0}, [{}, [1, 2]], [{"a": 1}]),
        ({"type": "object", "required": ["r"], "maxProperties": 2}, [{"r": 1}, {"r": 1, "x": 1}],
         [{"r": 1, "x": 1, "y": 1}, {"x": 1}])],
    "dependent required": [
        (closed({"card": INT, "address": STR, "x": INT}, dependentRequired={"card": ["address"]}),
         [{}, {"address": "a"}, {"card": 1, "address": "a"}, {"x": 1}], [{"card": 1}, {"card": 1, "x": 1}])],
    "dependencies of the older drafts": [
        ({"$schema": "http://json-schema.org/draft-07/schema#",
          **closed({"a": INT, "b": INT, "c": STR}, dependencies={"a": ["b"], "b": {"required": ["c"]}})},
         [{}, {"c": "x"}, {"b": 1, "c": "x"}, {"a": 1, "b": 1, "c": "x"}],
         [{"a": 1}, {"a": 1, "b": 1}, {"b": 1}])],
    "dependent schemas": [
        ({"type": "object", "properties": {"a": INT, "b": {}},
          "dependentSchemas": {"a": {"properties": {"b": STR}}}}, [{"b": 1}, {"a": 1, "b": "x"}, {"a": 1}],
         [{"a": 1, "b": 1}])],
    "unevaluated properties alone are additional ones": [
        ({"type": "object", "properties": {"a": INT}, "unevaluatedProperties": False}, [{"a": 1}, {}],
         [{"b": 1}])],
    "nested objects": [
        (closed({"a": closed({"b": closed({"c": INT}, required=["c"])}, required=["b"])}, required=["a"]),
         [{"a": {"b": {"c": 1}}}], [{"a": {"b": {}}}, {"a": {}}, {}])],
    "object constraints apply to objects only": [
        ({"properties": {"a": INT}, "required": ["a"]}, ["x", 1, [], None, {"a": 1}], [{}, {"a": "x"}])],
    # A closed object of scalars beside one that holds lists: both begin with the same brace and key.
    "alternatives that begin alike do not hide each other": [
        ({"anyOf": [closed({"a": INT}, required=["a"]),
          {"type": "object", "properties": {"a": {"type": "array"}}}]},
         [{"a": 1}, {"a": [1]}, {"b": {"c": 1}}, {"a": [], "b": 2}], [{"a": "x"}, {"a": 1, "b": 1}])],
    "many properties in the order of required if any order is requested": [
        ({"type": "object", "properties": dict.fromkeys("abcdefgh", INT), "required": ["h", "c"]},
         [{"h": 1, "c": 1, "a": 1}, {"a": 1, "c": 1, "h": 1}, {"$schema": "x", "c": 1, "z": 0, "h": 1}],
         [{"h": 1}, {"c": 1}], ANY_ORDER)],
    "counts hold in any order too": [
        ({"type": "object", "properties": {"a": INT, "b": INT}, "minProperties": 1},
         [{"x": 1}, {"b": 1, "a": 1}], [{}], ANY_ORDER),
        (closed({"a": INT, "b": INT, "c": INT}, maxProperties=2), [{"c": 1, "a": 1}],
         [{"c": 1, "a": 1, "b": 1}], ANY_ORDER)],
})  # fmt: skip


test_ours = table({
    "required properties come in the order of the schema": [
        (closed({"b": INT, "a": STR}, required=["a", "b"]), [{"b": 1, "a": "x"}],
         [{"a": "x", "b": 1}, {"b": 1}, {"a": "x"}, {}, {"b": "x", "a": "x"}])],
    "all optional": [
        (closed(dict.fromkeys("abc", INT)), [{}, {"a": 1}, {"b": 1, "c": 2}, {"a": 1, "c": 2}],
         [{"b": 1, "a": 2}, {"d": 1}])],
    "additional properties follow the declared ones": [
        ({"type": "object", "properties": {"ab": INT}},
         [{"ab": 1}, {"ab": 1, "x": "y"}, {"a": "y"}, {"abc": "y"}, {"": None}],
         [{"ab": "x"}, {"x": 1, "ab": 1}])],
    "the order of required is taken too where a program has sorted the properties": [
        ({"type": "object", "properties": {"age": INT, "city": INT, "name": INT},
          "required": ["name", "city"]},
         [{"age": 1, "city": 1, "name": 1}, {"name": 1, "city": 1, "age": 1}, {"name": 1, "city": 1}],
         [{"city": 1, "age": 1, "name": 1}, {"name": 1, "age": 1, "city": 1}, {"name": 1}])],
}, check_ours)  # fmt: skip


def test_every_subset_of_optional_properties():
    subsets = [dict.fromkeys(some, 1) for size in range(5) for some in itertools.combinations("abcd", size)]
    schema = closed(dict.fromkeys("abcd", INT), required=["c"])
    check(schema, [one for one in subsets if "c" in one], [one for one in subsets if "c" not in one])


def test_no_property_comes_twice():
    assert not accepts(closed({"a": INT, "b": INT}), '{"a":1,"a":2}')
    assert not accepts({"properties": {"a": INT}}, '{"a":1,"a":"x"}')
    assert not accepts({"properties": {"a": INT}}, '{"a":1,"\\u0061":"x"}')


def test_names_with_escapes():
    names = ['"', "\\", "é", "\n", "/", "😀"]
    schema = closed(dict.fromkeys(names, INT), required=names)
    check(schema, [dict.fromkeys(names, 1)], [dict.fromkeys(names[1:], 1)])
    assert accepts(closed({"é": INT}), '{"é":1}')
    assert accepts(closed({"é": INT}), '{"\\u00e9":1}')


@pytest.mark.parametrize(("names", "required"), [("abc", "bc"), ("abc", ""), ("bac", "cab")])
def test_no_order_but_that_of_the_schema_is_accepted(names, required):
    schema = {"type": "object", "properties": dict.fromkeys(names, INT), "required": list(required)}
    check_ours(schema, [dict.fromkeys(names, 1)], [dict.fromkeys(reversed(names), 1)])


def test_any_order_is_accepted_on_request():
    schema = closed({"a": INT, "b": INT, "c": INT}, required=["a", "b"])
    orders = [dict.fromkeys(o, 1) for o in itertools.permutations("abc")]
    check(schema, [*orders, {"b": 1, "a": 1}], [{"a": 1, "c": 1}, {}, {"c": 1, "b": 1}], ANY_ORDER)
    assert not accepts(schema, '{"a":1,"b":1,"a":1}', ANY_ORDER)


def test_a_limit_beyond_the_number_of_properties_costs_nothing():
    names = {f"p{i}": {} for i in range(30)}
    few = {"p0": 1, "p29": 1, "x": 1}
    check({"properties": names, "maxProperties": 40}, [few, {}], [{f"q{i}": 1 for i in range(41)}])
    closed_schema = {"properties": names, "additionalProperties": False, "maxProperties": 1000}
    check(closed_schema, [{"p3": 1}, dict.fromkeys(names, 1)], [{"x": 1}])


def test_names_that_property_names_lists_do_not_repeat():
    names = {"enum": ["red", "green", "blue"]}
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    grammar = check_schema(schema)
    check_texts(grammar, ["{}", '{"red":1,"blue":2}'], ['{"red":1,"red":2}', '{"pink":1}', '{"red":"a"}'])
    check({**schema, "minProperties": 2}, [{"red": 1, "green": 2}, {"green": 1, "blue": 2}], [{"red": 1}, {}])
    check({**schema, "maxProperties": 1}, [{"blue": 1}, {}], [{"red": 1, "green": 2}])
    more = {"properties": {"a": STR}, "required": ["green"], "propertyNames": {"enum": ["a", "green"]}}
    more |= {"type": "object"}
    check(more, [{"a": "x", "green": 1}, {"green": None}], [{"a": "x"}, {"green": 1, "b": 1}])
    const = {"type": "object", "propertyNames": {"const": "k"}, "additionalProperties": {"type": "null"}}
    check(const, [{"k": None}, {}], [{"k": 1}, {"l": None}])
