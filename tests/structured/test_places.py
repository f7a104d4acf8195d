"""Places of keywords that are not enforced: each use of an equal keyword has its own."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import Options, UnsupportedSchema
from tests.structured.making import check_rules
from tests.structured.oracle import compact

pytestmark = pytest.mark.thorough

LENIENT = Options(strict=False)
NUMBERS = {"type": "array", "items": {"type": ["number", "null"]}, "uniqueItems": True}
TEXTS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
LISTED = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}
PRIME = 10**18 + 9
"""Too large a step for any automaton."""
MULTIPLE = {"type": "integer", "multipleOf": PRIME}
COUNTED = {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}

LEAVES = [
    # schema, keywords that are not enforced, a valid value, one that only these keywords forbid
    (NUMBERS, {("", "uniqueItems")}, [1], [1, 1]),
    (TEXTS, set(), ["a", "b"], ["a", "a"]),
    ({**NUMBERS, "minItems": 1}, {("", "uniqueItems")}, [1], [1, 1]),
    ({"allOf": [NUMBERS, {"maxItems": 2}]}, {("/allOf/0", "uniqueItems")}, [], [1, 1]),
    ({"allOf": [NUMBERS, {"maxItems": 1}]}, set(), [1], [1, 1]),
    ({"allOf": [NUMBERS, {"uniqueItems": True}]}, {("/allOf/0", "uniqueItems"), ("/allOf/1", "uniqueItems")},
     [1], [1, 1]),
    (LISTED, set(), ["a", "b"], ["a", "a"]),
    ({**LISTED, "minItems": 1}, set(), ["a"], ["a", "a"]),
    ({**NUMBERS, "contains": {"const": 3}}, {("", "uniqueItems")}, [3], [3, 3]),
    (MULTIPLE, {("", "multipleOf")}, PRIME, 1),
    ({**MULTIPLE, "minimum": 0}, {("", "multipleOf")}, PRIME, 1),
    ({**MULTIPLE, "minimum": 0, "maximum": 4}, set(), 0, 1),
    (COUNTED, {("", "minProperties")}, {"a": 1, "b": 1}, {"a": 1}),
    ({**COUNTED, "allOf": [{"minProperties": 3}]},
     {("", "minProperties"), ("/allOf/0", "minProperties")}, {"a": 1, "b": 1, "c": 1}, {"a": 1}),
    ({**COUNTED, "minProperties": 1}, set(), {"a": 1}, {}),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "minProperties": 2},
     set(), {"a": 1, "b": 1}, {"a": 1}),
    ({"anyOf": [NUMBERS, {**NUMBERS, "minItems": 2}]},
     {("/anyOf/0", "uniqueItems"), ("/anyOf/1", "uniqueItems")}, [1], [1, 1]),
    ({"anyOf": [{**NUMBERS, "uniqueItems": False}, NUMBERS]}, set(), [1, 1], ["a"]),
]  # fmt: skip
WRAPPERS = [
    # schema and value around those of a leaf, and its pointer there
    (lambda leaf: leaf, lambda value: value, ""),
    (lambda leaf: {"type": "array", "items": leaf}, lambda value: [value], "/items"),
    (lambda leaf: {"type": "array", "prefixItems": [leaf], "minItems": 1}, lambda value: [value],
     "/prefixItems/0"),
    (lambda leaf: {"anyOf": [{"type": "null"}, leaf]}, lambda value: value, "/anyOf/1"),
    (lambda leaf: {"properties": {"x": leaf}, "type": "object"}, lambda value: {"x": value}, "/properties/x"),
    (lambda leaf: {"allOf": [{"oneOf": [leaf, {"type": "boolean"}]}]}, lambda value: value,
     "/allOf/0/oneOf/0"),
]  # fmt: skip
uses = st.lists(st.tuples(st.sampled_from(LEAVES), st.sampled_from(WRAPPERS)), min_size=2, max_size=5)


@settings(max_examples=30, suppress_health_check=list(HealthCheck), derandomize=True)
@given(uses)
def test_exactly_the_places_that_are_not_enforced_are_reported(drawn):
    names = [f"p{i}" for i in range(len(drawn))]
    schema = {
        "type": "object",
        "properties": {n: wrap(leaf) for n, ((leaf, *_), (wrap, *_)) in zip(names, drawn, strict=True)},
        "required": names,
        "additionalProperties": False,
    }
    schema = json.loads(json.dumps(schema))  # equal parts are objects of their own
    expected = {
        (f"/properties/{name}{pointer}{path}", keyword)
        for name, ((_, places, *_), (_, _, pointer)) in zip(names, drawn, strict=True)
        for path, keyword in places
    }
    found = compile_schema(schema, LENIENT)
    assert {(each.path, each.keyword) for each in found.unenforced} == expected
    grammar = check_rules(found.rules)
    valid = {n: wrap_value(leaf[2]) for n, (leaf, (_, wrap_value, _)) in zip(names, drawn, strict=True)}
    assert grammar.check(compact(valid)).fits
    for name, (leaf, (_, wrap_value, _)) in zip(names, drawn, strict=True):
        assert grammar.check(compact({**valid, name: wrap_value(leaf[3])})).fits == bool(leaf[1])
    if not expected:
        assert compile_schema(schema).unenforced == ()
        return
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema(schema)
    error = caught.value
    assert {(error.path, error.keyword), *((x.path, x.keyword) for x in error.others)} == expected
    assert all(f"'{x.keyword}' at {x.path}" in str(error) for x in error.others[:10])


def test_a_definition_is_named_once_though_some_of_its_uses_are_enforced():
    short = {"allOf": [{"$ref": "#/$defs/numbers"}], "maxItems": 1}
    schema = {"properties": {"a": {"$ref": "#/$defs/numbers"}, "b": short}, "$defs": {"numbers": NUMBERS}}
    (found,) = compile_schema(schema, LENIENT).unenforced
    assert (found.path, found.keyword) == ("/$defs/numbers", "uniqueItems")
    assert compile_schema({**schema, "properties": {"b": short}}).unenforced == ()


def test_unique_items_beside_many_that_must_occur_are_both_named():
    schema = {"type": "array", "uniqueItems": True, "allOf": [{"contains": {"const": i}} for i in range(5)]}
    found = compile_schema(schema, LENIENT).unenforced
    places = [("", "uniqueItems"), *((f"/allOf/{i}", "contains") for i in range(5))]
    assert [(x.path, x.keyword) for x in found] == places


def test_formats_that_give_way_are_named_at_each_place():
    clash = {"type": "string", "format": "date", "pattern": "^x"}
    schema = {"properties": {"a": clash, "b": dict(clash), "c": {"type": "string", "format": "date"}}}
    found = compile_schema(schema).unenforced
    assert {(x.path, x.keyword) for x in found} == {("/properties/a", "format"), ("/properties/b", "format")}
