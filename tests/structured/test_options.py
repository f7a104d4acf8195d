"""Keywords that cannot be enforced: refused, or left out and reported."""

import json

import pytest

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import (
    InvalidSchema,
    Options,
    SchemaTooLarge,
    Unenforced,
    UnsupportedSchema,
)
from tests.structured.oracle import check_ours

LENIENT = Options(strict=False)
SCHEMA = {
    "type": "object",
    "properties": {
        "tags": {"items": {"type": ["string", "number"], "maxLength": 3}, "uniqueItems": True},
        "name": {"type": "string", "pattern": "(a)\\1", "minLength": 1},
    },
    "required": ["tags"],
}


def test_keywords_that_are_left_out_are_reported_and_the_rest_is_enforced():
    with pytest.raises(UnsupportedSchema):
        compile_schema(SCHEMA)
    assert compile_schema({"type": "string"}).unenforced == ()
    tags, name = Unenforced("/properties/tags", "uniqueItems"), Unenforced("/properties/name", "pattern")
    assert set(compile_schema(SCHEMA, LENIENT).unenforced) == {tags, name}
    rejected = [{"tags": ["abcd"]}, {"tags": [], "name": ""}, {}]
    check_ours(SCHEMA, [{"tags": ["a", "a"], "name": "b"}], rejected, LENIENT)


TEXT = {"type": "string"}
COMBINED = {
    "type": "object",
    "unevaluatedProperties": False,
    "anyOf": [{"properties": {f"p{i}": {}}} for i in range(10)],
}


@pytest.mark.parametrize(
    ("schema", "path", "keyword", "message"),
    [
        ({"type": "object", "minProperties": 2}, "", "minProperties", None),
        ({"type": "integer", "multipleOf": 123457}, "", "multipleOf", None),
        ({"items": {"type": "integer", "multipleOf": 99999}}, "/items", "multipleOf", None),
        ({"$dynamicRef": "#x"}, "", "$dynamicRef", "dynamicRef"),
        ({"items": {"items": {}, "uniqueItems": True}}, "/items", "uniqueItems", "list up to 400 values"),
        ({"items": {"type": "integer", "multipleOf": 512}, "uniqueItems": True}, "", "uniqueItems", None),
        ({"items": {"type": ["string", "number"]}, "uniqueItems": True}, "", "uniqueItems", None),
        ({"prefixItems": [TEXT], "items": TEXT, "uniqueItems": True}, "", "uniqueItems", None),
        ({"items": TEXT, "contains": {"const": "a"}, "uniqueItems": True}, "", "uniqueItems", None),
        ({"not": {"type": "array", "uniqueItems": True}}, "/not", "uniqueItems", None),
        ({"type": "object", "not": {"propertyNames": {"pattern": "a"}},
          "allOf": [{"not": {"propertyNames": {"pattern": "b"}}}]}, "/allOf/0/not", "propertyNames", None),
        ({"patternProperties": {"(a)\\1": {}}}, "", "patternProperties", None),
        ({"properties": {"p": COMBINED}}, "/properties/p", "unevaluatedProperties", "combinations"),
        ({"type": "object", "not": {"minProperties": 2, "maxProperties": 3}}, "/not", "minProperties", None),
        ({"type": "object", "not": {"not": {"minProperties": 2}}}, "/not/not", "minProperties", None),
        ({"type": "array", "not": {"contains": {"not": {"uniqueItems": True}}}}, "/not/contains/not",
         "uniqueItems", None),
        ({"not": {"type": "array", "prefixItems": [True], "items": TEXT}}, "/not", "prefixItems", None),
        ({"type": "object", "not": {"propertyNames": {"enum": ["a"]}}}, "/not", "propertyNames", None),
    ],
)  # fmt: skip
def test_unenforceable_keywords_are_refused_with_their_path_or_left_out(schema, path, keyword, message):
    with pytest.raises(UnsupportedSchema, match=message) as caught:
        compile_schema(schema)
    assert (caught.value.path, caught.value.keyword) == (path, keyword)
    assert compile_schema(schema, LENIENT).unenforced == (Unenforced(path, keyword),)


@pytest.mark.parametrize(
    "schema",
    [
        *({"properties": []}, {"required": "a"}, {"required": [1]}, {"required": ["1", 1]}, {"enum": 1}),
        *({"items": 3}, {"minLength": -1}, {"maxItems": 1.5}, {"minimum": "1"}, {"multipleOf": 0}),
        *({"anyOf": []}, {"allOf": {}}, {"pattern": 1}, {"format": []}, {"$ref": 1}, {"uniqueItems": "yes"}),
        *({"type": []}, {"properties": {"a": 1}}, {"dependencies": []}, {"prefixItems": {}}),
        *({"maximum": float("inf")}, {"enum": [float("nan")]}),
    ],
)
def test_invalid_schemas_are_refused_in_either_mode(schema):
    for options in (Options(), LENIENT):
        with pytest.raises(InvalidSchema):
            compile_schema(schema, options)


def test_errors_have_their_path_as_a_pointer():
    with pytest.raises(InvalidSchema) as caught:
        compile_schema({"properties": {"a/b": {"items": {"minLength": "x"}}}})
    assert caught.value.path == "/properties/a~1b/items"
    with pytest.raises(InvalidSchema, match="strng"):
        compile_schema({"type": "strng"})


IRREGULAR = {"pattern": "(a)\\1"}


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({**TEXT, "not": IRREGULAR}, ["aa", "b"], [1]),
        ({"not": IRREGULAR}, ["aa", "b"], [1, None, {}]),  # other types fit every pattern
        ({"type": ["string", "null"], "not": {"not": IRREGULAR}}, ["aa", None], [1]),
        ({**TEXT, "if": IRREGULAR, "then": {"maxLength": 2}, "else": {"minLength": 4}}, ["aa", "abcd"],
         ["abc", 1]),
        ({"type": ["string", "integer"], "oneOf": [IRREGULAR, {"maxLength": 2}]}, ["a", "abc"], []),
        ({"oneOf": [{**TEXT, **IRREGULAR}, {**TEXT, "maxLength": 2}, {"type": "null"}]}, ["a", "abc", None],
         [1]),
        ({**TEXT, "anyOf": [IRREGULAR, {"const": "b"}]}, ["aa", "b", "c"], [1]),
        ({**TEXT, "allOf": [IRREGULAR, {"maxLength": 2}]}, ["aa", "b"], ["abc"]),
        ({"type": "array", "contains": IRREGULAR, "items": TEXT}, [["a"], ["b", "aa"]], [[], [1]]),
        ({"type": "array", "items": TEXT, "not": {"contains": IRREGULAR}}, [["b"], []], [[1]]),
        ({"not": {"$ref": "#/none"}, **TEXT}, ["a"], [1]),
        ({"anyOf": [{"$ref": "https://example.org/s"}, {"type": "null"}], "type": ["string", "null"]}, ["a"],
         [1]),
        ({"not": {"uniqueItems": True}, "type": "array", "items": TEXT}, [["a", "a"], ["a"]], [["a", 1]]),
        ({"not": {"multipleOf": 123457}, "type": "integer"}, [1, 2], ["a"]),
    ],
)  # fmt: skip
def test_values_may_fit_a_left_out_keyword_or_not(schema, accepted, rejected):
    assert compile_schema(schema, LENIENT).unenforced
    check_ours(schema, accepted, rejected, LENIENT)


def test_only_the_broken_pattern_of_names_is_left_out():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"^(x)\\1": TEXT, "^y": {"type": "null"}},
        "additionalProperties": False,
    }
    assert compile_schema(schema, LENIENT).unenforced == (Unenforced("", "patternProperties"),)
    rejected = [{"a": "b"}, {"y": 1}, {"y": "a"}, {"xx": 1}, {"b": {}}]
    check_ours(schema, [{"a": 1}, {"a": 1, "y": None}, {"xx": "b"}, {}], rejected, LENIENT)
    check_ours({"not": schema, "type": "object"}, [{"a": 1}, {"xx": 1}], ["a"], LENIENT)


def test_keywords_that_depend_on_a_left_out_keyword_are_reported_too():
    schema = {"allOf": [{"patternProperties": {"^(x)\\1": TEXT}}], "unevaluatedProperties": False}
    names, others = Unenforced("/allOf/0", "patternProperties"), Unenforced("", "unevaluatedProperties")
    assert set(compile_schema(schema, LENIENT).unenforced) == {names, others}
    check_ours({"not": schema, "type": "object"}, [{"a": 1}, {"xx": 1}], [1], LENIENT)


def within(schema):
    inner = {"type": "object", "properties": {"c": schema}, "required": ["c"]}
    inner = {"type": "array", "items": inner, "minItems": 1}
    return {"type": "object", "properties": {"a/b": inner}, "required": ["a/b"]}


@pytest.mark.parametrize(
    "impossible",
    [
        False,
        {"not": {}},
        {"enum": []},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "string", "enum": [1]},
        {"type": "array", "minItems": 1, "items": False, "contains": True},
        {"type": "object", "minProperties": 2, "maxProperties": 1},
        {"allOf": [TEXT, {"type": "null"}]},
        {"oneOf": [TEXT, TEXT]},
        {"type": "boolean", "not": {"type": "boolean"}},
        {"anyOf": [{"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/$defs/n"}}}]},
    ],
)
def test_impossible_schemas_are_refused_with_their_path(impossible):
    """Impossible parts are found in alternatives and behind references too."""
    behind = {"$defs": {"n": {"type": "integer", "allOf": [{"maximum": 1}, {"minimum": 2}]}}}
    with pytest.raises(InvalidSchema, match="no value can satisfy") as caught:
        compile_schema({**within(impossible), **behind})
    assert caught.value.path.startswith(("/properties/a~1b/items/properties/c", "/$defs/n"))


@pytest.mark.parametrize(
    "large",
    [
        {"enum": list(range(3_000))},
        {"type": "object", "properties": {f"p{i}": {} for i in range(3_000)}},
        {"type": "integer", "allOf": [{"multipleOf": p} for p in (7, 11, 13, 17, 19, 23)]},
        {"type": "array", "contains": {"type": "integer"}, "minContains": 10**6},
        {"type": "object",
         "allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]} for i in range(9)]},
    ],
)  # fmt: skip
def test_too_large_schemas_are_refused_with_their_path(large):
    with pytest.raises(SchemaTooLarge, match="/properties/a~1b/items/properties/c") as caught:
        compile_schema(within(large))
    assert caught.value.path.startswith("/properties/a~1b/items/properties/c")


def test_the_same_schema_gives_the_same_grammar():
    assert compile_schema(SCHEMA, LENIENT) == compile_schema(json.loads(json.dumps(SCHEMA)), LENIENT)
