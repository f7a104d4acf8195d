"""properties, required, additionalProperties, patternProperties, propertyNames, counts, dependencies."""

import itertools

import pytest

from openai_cpu_server.structured.options import Options, PropertyOrder
from tests.structured.making import check_schema
from tests.structured.oracle import accepts, check, check_ours, check_texts

INT, STR = {"type": "integer"}, {"type": "string"}
ANY_ORDER = Options(order=PropertyOrder.ANY)


def closed(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def test_required_properties_come_in_the_order_of_the_schema():
    schema = closed({"b": INT, "a": STR}, required=["a", "b"])
    check_ours(
        schema, [{"b": 1, "a": "x"}], [{"a": "x", "b": 1}, {"b": 1}, {"a": "x"}, {}, {"b": "x", "a": "x"}]
    )


def test_every_subset_of_optional_properties():
    names = ["a", "b", "c", "d"]
    schema = closed(dict.fromkeys(names, INT), required=["c"])
    for size in range(5):
        for subset in itertools.combinations(names, size):
            assert accepts(schema, str(dict.fromkeys(subset, 1)).replace("'", '"').replace(" ", "")) == (
                "c" in subset
            )


def test_all_optional():
    schema = closed(dict.fromkeys("abc", INT))
    check_ours(schema, [{}, {"a": 1}, {"b": 1, "c": 2}, {"a": 1, "c": 2}], [{"b": 1, "a": 2}, {"d": 1}])


def test_no_property_comes_twice():
    assert not accepts(closed({"a": INT, "b": INT}), '{"a":1,"a":2}')
    assert not accepts({"properties": {"a": INT}}, '{"a":1,"a":"x"}')
    assert not accepts({"properties": {"a": INT}}, '{"a":1,"\\u0061":"x"}')


def test_additional_properties_follow_the_declared_ones():
    schema = {"type": "object", "properties": {"ab": INT}}
    check_ours(
        schema,
        [{"ab": 1}, {"ab": 1, "x": "y"}, {"a": "y"}, {"abc": "y"}, {"": None}],
        [{"ab": "x"}, {"x": 1, "ab": 1}],
    )


def test_additional_properties_with_a_schema():
    check(
        {"type": "object", "properties": {"a": STR}, "additionalProperties": INT},
        [{"a": "x", "b": 1, "c": 2}, {"b": 1}],
        [{"b": "x"}, {"a": 1}],
    )


def test_a_required_name_that_is_not_declared():
    check({"type": "object", "required": ["x"]}, [{"x": 1}, {"x": None, "y": 2}], [{}, {"y": 1}])
    check({"type": "object", "required": ["x"], "additionalProperties": INT}, [{"x": 1}], [{"x": "a"}, {}])


def test_false_forbids_a_property():
    check(
        {"type": "object", "properties": {"a": False, "b": INT}},
        [{}, {"b": 1}, {"c": 1}],
        [{"a": 1}, {"a": None, "b": 1}],
    )


def test_names_with_escapes():
    names = ['"', "\\", "é", "\n", "/", "😀"]
    schema = closed(dict.fromkeys(names, INT), required=names)
    check(schema, [dict.fromkeys(names, 1)], [dict.fromkeys(names[1:], 1)])
    assert accepts(closed({"é": INT}), '{"é":1}')
    assert accepts(closed({"é": INT}), '{"\\u00e9":1}')


def test_pattern_properties():
    schema = {
        "type": "object",
        "properties": {"ab": STR},
        "patternProperties": {"^a": {"minLength": 2}, "z$": INT},
        "additionalProperties": False,
    }
    check(
        schema,
        [{"ab": "xx"}, {"ac": "yy"}, {"z": 1}, {"bz": 1}, {}],
        [{"ab": "x"}, {"ac": "y"}, {"z": "x"}, {"q": 1}, {"az": "xx"}],
    )


def test_a_pattern_that_is_a_name():
    schema = {
        "type": "object",
        "patternProperties": {"^MD5$": STR, "^SHA$": INT},
        "additionalProperties": False,
    }
    check(schema, [{}, {"MD5": "x"}, {"MD5": "x", "SHA": 1}], [{"MD5": 1}, {"MD4": "x"}])


def test_pattern_properties_beside_open_ones():
    check({"type": "object", "patternProperties": {"^n_": INT}}, [{"n_a": 1, "x": "y"}], [{"n_a": "y"}])


def test_property_names():
    check(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 3}},
        [{}, {"abc": 1}],
        [{"abcd": 1}, {"A": 1}],
    )
    check(
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INT},
        [{"a": 1, "b": 2}],
        [{"c": 1}, {"a": "x"}],
    )
    check({"type": "object", "propertyNames": False}, [{}], [{"a": 1}])


def test_min_properties():
    check(
        closed({"a": INT, "b": INT, "c": INT}, minProperties=2),
        [{"a": 1, "c": 1}, {"b": 1, "c": 1}],
        [{}, {"b": 1}],
    )
    check({"type": "object", "minProperties": 1}, [{"a": 1}], [{}])
    check(
        {"type": "object", "properties": {"a": INT}, "minProperties": 2}, [{"a": 1, "x": 1}], [{"a": 1}, {}]
    )


def test_max_properties():
    check(
        closed(dict.fromkeys("abcd", INT), maxProperties=2),
        [{}, {"a": 1, "d": 1}],
        [{"a": 1, "b": 1, "c": 1}],
    )
    check({"type": "object", "maxProperties": 1}, [{}, {"x": 1}], [{"x": 1, "y": 1}])
    check(
        {"type": "object", "required": ["r"], "maxProperties": 2},
        [{"r": 1}, {"r": 1, "x": 1}],
        [{"r": 1, "x": 1, "y": 1}, {"x": 1}],
    )


def test_dependent_required():
    schema = closed({"card": INT, "address": STR, "x": INT}, dependentRequired={"card": ["address"]})
    check(
        schema,
        [{}, {"address": "a"}, {"card": 1, "address": "a"}, {"x": 1}],
        [{"card": 1}, {"card": 1, "x": 1}],
    )


def test_dependencies_of_the_older_drafts():
    dependencies = {"a": ["b"], "b": {"required": ["c"]}}
    schema = closed({"a": INT, "b": INT, "c": STR}, dependencies=dependencies)
    check(
        {"$schema": "http://json-schema.org/draft-07/schema#", **schema},
        [{}, {"c": "x"}, {"b": 1, "c": "x"}, {"a": 1, "b": 1, "c": "x"}],
        [{"a": 1}, {"a": 1, "b": 1}, {"b": 1}],
    )


def test_dependent_schemas():
    schema = {
        "type": "object",
        "properties": {"a": INT, "b": {}},
        "dependentSchemas": {"a": {"properties": {"b": STR}}},
    }
    check(schema, [{"b": 1}, {"a": 1, "b": "x"}, {"a": 1}], [{"a": 1, "b": 1}])


def test_unevaluated_properties_alone_are_additional_ones():
    check(
        {"type": "object", "properties": {"a": INT}, "unevaluatedProperties": False},
        [{"a": 1}, {}],
        [{"b": 1}],
    )


def test_nested_objects():
    schema = closed({"a": closed({"b": closed({"c": INT}, required=["c"])}, required=["b"])}, required=["a"])
    check(schema, [{"a": {"b": {"c": 1}}}], [{"a": {"b": {}}}, {"a": {}}, {}])


def test_object_constraints_apply_to_objects_only():
    check({"properties": {"a": INT}, "required": ["a"]}, ["x", 1, [], None, {"a": 1}], [{}, {"a": "x"}])


def test_alternatives_that_begin_alike_do_not_hide_each_other():
    """A closed object of scalars beside one that holds lists: both begin with the same brace and key."""
    schema = {
        "anyOf": [
            closed({"a": INT}, required=["a"]),
            {"type": "object", "properties": {"a": {"type": "array"}}},
        ]
    }
    check(schema, [{"a": 1}, {"a": [1]}, {"b": {"c": 1}}, {"a": [], "b": 2}], [{"a": "x"}, {"a": 1, "b": 1}])


def test_the_order_of_required_is_taken_too_where_a_program_has_sorted_the_properties():
    members = {"age": INT, "city": INT, "name": INT}
    schema = {"type": "object", "properties": members, "required": ["name", "city"]}
    check_ours(
        schema,
        [{"age": 1, "city": 1, "name": 1}, {"name": 1, "city": 1, "age": 1}, {"name": 1, "city": 1}],
        [{"city": 1, "age": 1, "name": 1}, {"name": 1, "age": 1, "city": 1}, {"name": 1}],
    )


@pytest.mark.parametrize(
    ("names", "required"), [("abc", "bc"), ("abc", ""), ("bac", "cab")], ids=["same", "none", "meant"]
)
def test_an_order_that_somebody_chose_is_the_only_one(names, required):
    schema = {"type": "object", "properties": dict.fromkeys(names, INT), "required": list(required)}
    check_ours(schema, [dict.fromkeys(names, 1)], [dict.fromkeys(reversed(names), 1)])


def test_any_order_if_that_is_wished():
    schema = closed({"a": INT, "b": INT, "c": INT}, required=["a", "b"])
    orders = [dict.fromkeys(o, 1) for o in itertools.permutations("abc")]
    check(schema, [*orders, {"b": 1, "a": 1}], [{"a": 1, "c": 1}, {}, {"c": 1, "b": 1}], ANY_ORDER)
    assert not accepts(schema, '{"a":1,"b":1,"a":1}', ANY_ORDER)


def test_many_properties_in_the_order_of_required_if_any_order_is_wished():
    names = "abcdefgh"
    schema = {"type": "object", "properties": dict.fromkeys(names, INT), "required": ["h", "c"]}
    check(
        schema,
        [{"h": 1, "c": 1, "a": 1}, {"a": 1, "c": 1, "h": 1}, {"$schema": "x", "c": 1, "z": 0, "h": 1}],
        [{"h": 1}, {"c": 1}],
        ANY_ORDER,
    )


def test_counts_hold_in_any_order_too():
    check(
        {"type": "object", "properties": {"a": INT, "b": INT}, "minProperties": 1},
        [{"x": 1}, {"b": 1, "a": 1}],
        [{}],
        ANY_ORDER,
    )
    check(
        closed({"a": INT, "b": INT, "c": INT}, maxProperties=2),
        [{"c": 1, "a": 1}],
        [{"c": 1, "a": 1, "b": 1}],
        ANY_ORDER,
    )


def test_a_limit_on_many_properties_counts_only_as_far_as_they_go():
    names = {f"p{i}": {} for i in range(30)}
    few = {"p0": 1, "p29": 1, "x": 1}
    check({"properties": names, "maxProperties": 40}, [few, {}], [{f"q{i}": 1 for i in range(41)}])
    shut = {"properties": names, "additionalProperties": False, "maxProperties": 1000}
    check(shut, [{"p3": 1}, dict.fromkeys(names, 1)], [{"x": 1}])


def test_names_that_property_names_lists_do_not_repeat():
    names = {"enum": ["red", "green", "blue"]}
    schema = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    grammar = check_schema(schema)
    check_texts(grammar, ["{}", '{"red":1,"blue":2}'], ['{"red":1,"red":2}', '{"pink":1}', '{"red":"a"}'])
    check({**schema, "minProperties": 2}, [{"red": 1, "green": 2}, {"green": 1, "blue": 2}], [{"red": 1}, {}])
    check({**schema, "maxProperties": 1}, [{"blue": 1}, {}], [{"red": 1, "green": 2}])
    more = {"properties": {"a": STR}, "required": ["green"], "propertyNames": {"enum": ["a", "green"]}}
    check(
        {"type": "object", **more},
        [{"a": "x", "green": 1}, {"green": None}],
        [{"a": "x"}, {"green": 1, "b": 1}],
    )
    const = {"type": "object", "propertyNames": {"const": "k"}, "additionalProperties": {"type": "null"}}
    check(const, [{"k": None}, {}], [{"k": 1}, {"l": None}])
