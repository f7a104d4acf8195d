"""Keywords that cannot be enforced: refused, or left out and named."""

import json

import pytest

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import InvalidSchema, Options, Unenforced, UnsupportedSchema
from tests.structured.making import schema_to_gbnf
from tests.structured.oracle import check_ours

LENIENT = Options(strict=False)
SCHEMA = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True},
        "name": {"type": "string", "pattern": "(a)\\1", "minLength": 1},
    },
    "required": ["tags"],
}


def test_nothing_is_left_out_of_a_strict_grammar():
    with pytest.raises(UnsupportedSchema):
        compile_schema(SCHEMA)
    assert compile_schema({"type": "string"}).unenforced == ()


def test_what_is_left_out_is_named_and_the_rest_is_enforced():
    compiled = compile_schema(SCHEMA, LENIENT)
    assert set(compiled.unenforced) == {
        Unenforced("/properties/tags", "uniqueItems"),
        Unenforced("/properties/name", "pattern"),
    }
    check_ours(
        SCHEMA,
        [{"tags": ["a", "a"], "name": "b"}],
        [{"tags": ["abcd"]}, {"tags": [], "name": ""}, {}],
        LENIENT,
    )


TEXT = {"type": "string"}
COMBINED = {
    "type": "object",
    "unevaluatedProperties": False,
    "anyOf": [{"properties": {f"p{i}": {}}} for i in range(10)],
}


@pytest.mark.parametrize(
    ("schema", "path", "keyword", "said"),
    [
        ({"type": "object", "minProperties": 2}, "", "minProperties", None),
        ({"type": "integer", "multipleOf": 123457}, "", "multipleOf", None),
        ({"items": {"type": "integer", "multipleOf": 99999}}, "/items", "multipleOf", None),
        ({"$dynamicRef": "#x"}, "", "$dynamicRef", "dynamicRef"),
        ({"items": {"items": TEXT, "uniqueItems": True}}, "/items", "uniqueItems", "list them with 'enum'"),
        ({"not": {"type": "array", "uniqueItems": True}}, "/not", "uniqueItems", None),
        (
            {
                "type": "object",
                "not": {"propertyNames": {"pattern": "a"}},
                "allOf": [{"not": {"propertyNames": {"pattern": "b"}}}],
            },
            "/allOf/0/not",
            "propertyNames",
            None,
        ),
        ({"patternProperties": {"(a)\\1": {}}}, "", "patternProperties", None),
        ({"properties": {"p": COMBINED}}, "/properties/p", "unevaluatedProperties", "combinations"),
    ],
)
def test_what_no_grammar_can_hold_is_refused_where_it_stands_or_left_out(schema, path, keyword, said):
    with pytest.raises(UnsupportedSchema, match=said) as caught:
        compile_schema(schema)
    assert (caught.value.path, caught.value.keyword) == (path, keyword)
    assert compile_schema(schema, LENIENT).unenforced == (Unenforced(path, keyword),)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": []},
        {"required": "a"},
        {"required": [1]},
        {"enum": 1},
        {"items": 3},
        {"minLength": -1},
        {"maxItems": 1.5},
        {"minimum": "1"},
        {"multipleOf": 0},
        {"anyOf": []},
        {"allOf": {}},
        {"pattern": 1},
        {"format": []},
        {"$ref": 1},
        {"uniqueItems": "yes"},
        {"type": []},
        {"properties": {"a": 1}},
        {"dependencies": []},
        {"prefixItems": {}},
        {"maximum": float("inf")},
        {"enum": [float("nan")]},
    ],
)
def test_what_is_no_schema_is_refused_in_either_mode(schema):
    for options in (Options(), LENIENT):
        with pytest.raises(InvalidSchema):
            schema_to_gbnf(schema, options)


def test_errors_tell_the_place_as_a_pointer():
    with pytest.raises(InvalidSchema) as caught:
        schema_to_gbnf({"properties": {"a/b": {"items": {"minLength": "x"}}}})
    assert caught.value.path == "/properties/a~1b/items"


def test_the_same_schema_gives_the_same_text():
    assert schema_to_gbnf(SCHEMA, LENIENT) == schema_to_gbnf(json.loads(json.dumps(SCHEMA)), LENIENT)
