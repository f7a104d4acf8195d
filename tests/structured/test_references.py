"""$ref, $defs, definitions, $id, $anchor, recursion; $schema decides about siblings."""

import pytest

from openai_cpu_server.structured.options import InvalidSchema, UnsupportedSchema
from tests.structured.making import schema_to_gbnf
from tests.structured.oracle import check, check_ours

INT = {"type": "integer"}
SHUT = {"additionalProperties": False}


@pytest.mark.parametrize("home", ["$defs", "definitions", "components"])
def test_local_reference(home):
    check({home: {"n": INT}, "type": "array", "items": {"$ref": f"#/{home}/n"}}, [[], [1]], [["a"]])


def test_pointers_are_unescaped():
    check({"$defs": {"a/b~c d": INT}, "$ref": "#/$defs/a~1b~0c%20d"}, [1], ["a"])


def test_a_reference_into_any_place():
    check_ours(
        {
            "properties": {"a": {"items": [INT]}, "b": {"$ref": "#/properties/a/items/0"}},
            "required": ["b"],
            "type": "object",
        },
        [{"b": 1}],
        [{"b": "x"}],
    )


def test_recursion():
    tree = {
        "type": "object",
        "properties": {"v": INT, "kids": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["v"],
        "additionalProperties": False,
    }
    check(tree, [{"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]}], [{}, {"v": 1, "kids": [{}]}])


def test_mutual_recursion():
    schema = {
        "$defs": {
            "a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
            "b": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/a"}},
                "additionalProperties": False,
            },
        },
        "$ref": "#/$defs/a",
    }
    check(schema, [[], [{}], [{"a": [{}]}]], [{}, [{"a": {}}], [1]])


def test_endless_recursion_is_no_alternative():
    schema = {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
        "anyOf": [{"$ref": "#/$defs/n"}, INT],
    }
    check(schema, [1], [{}, {"n": {}}])


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"anyOf": [INT, {"$ref": "#"}]},
    ],
)
def test_a_reference_that_leads_back_to_itself_is_refused(schema):
    with pytest.raises(InvalidSchema, match="itself"):
        schema_to_gbnf(schema)


@pytest.mark.parametrize(
    "target",
    [
        "http://[",
        "#/oneOf/-1",
        "#/$defs/none",
        "#none",
        "other.json",
        "https://example.org/s.json",
        "#/type/x",
    ],
)
def test_a_reference_to_nothing_is_refused(target):
    with pytest.raises(UnsupportedSchema) as caught:
        schema_to_gbnf({"properties": {"a": {"$ref": target}}, "type": "object"})
    assert (caught.value.path, caught.value.keyword) == ("/properties/a", "$ref")


def test_anchors():
    check_ours({"$defs": {"x": {"$anchor": "n", **INT}}, "$ref": "#n"}, [1], ["a"])
    check_ours({"definitions": {"x": {"id": "#n", **INT}}, "$ref": "#n"}, [1], ["a"])


def test_ids():
    schema = {
        "$id": "https://example.org/root.json",
        "$defs": {"x": {"$id": "sub/x.json", "$defs": {"y": INT}, "$ref": "#/$defs/y"}},
        "$ref": "sub/x.json",
    }
    check(schema, [1], ["a"])
    check(
        {
            "$id": "https://example.org/r.json",
            "$defs": {"n": INT},
            "$ref": "https://example.org/r.json#/$defs/n",
        },
        [1],
        ["a"],
    )


def test_siblings_count_since_2019():
    check({"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 5}, [5], [4, "a"])


def test_siblings_are_silent_in_the_older_drafts():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": INT},
        "$ref": "#/definitions/n",
        "minimum": 5,
    }
    check(schema, [4, 5], ["a"])


def test_recursive_ref():
    check_ours({"$recursiveRef": "#/$defs/n", "$defs": {"n": INT}}, [1], ["a"])


def test_an_id_beside_a_silencing_ref_is_no_base():
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "http://example.org/base/",
        "definitions": {
            "s": {"$id": "http://example.org/other/n.json", "type": "string"},
            "i": {"$id": "n.json", **INT},
        },
        "allOf": [{"$id": "http://example.org/other/", "$ref": "n.json"}],
    }
    check(schema, [1], ["a"])


TREE = {"type": "object", "properties": {"kids": {"items": {"$dynamicRef": "#node"}}}, **SHUT}


def test_a_dynamic_ref_with_one_anchor_is_a_ref():
    schema = {"items": {"$dynamicRef": "#x"}, "type": "array", "$defs": {"a": {"$dynamicAnchor": "x", **INT}}}
    check(schema, [[1], []], [["a"]])
    check({"$dynamicRef": "#x", "$defs": {"a": {"$anchor": "x", **INT}}}, [1], ["a"])
    check({"$dynamicAnchor": "node", **TREE}, [{}, {"kids": [{"kids": []}]}], [{"a": 1}, {"kids": [1]}])


def test_a_dynamic_anchor_of_the_root_is_the_outermost():
    schema = {
        "$id": "https://example.org/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "required": ["kids"],
        "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", **TREE}},
    }
    check(schema, [{"kids": []}, {"kids": [{"kids": []}]}], [{}, {"kids": [{}]}])


def test_a_dynamic_ref_means_what_the_way_there_says():
    lists = {
        name: {"$id": name, "$ref": "list", "$defs": {"x": {"$dynamicAnchor": "item", "type": kind}}}
        for name, kind in (("numbers", "number"), ("strings", "string"))
    }
    items = {
        "$id": "list",
        "type": "array",
        "items": {"$dynamicRef": "#item"},
        "$defs": {"y": {"$dynamicAnchor": "item"}},
    }
    home = {"$id": "https://example.org/root", "$defs": {**lists, "l": items}}
    either = {**home, "anyOf": [{"$ref": "numbers"}, {"$ref": "strings"}]}
    check(either, [[1, 2], ["a"], []], [[1, "a"], [None], 1])
    check({**home, "$ref": "list"}, [[1, "a", None]], [1])
    pair = {"properties": {"a": {"$ref": "numbers"}, "b": {"$ref": "strings"}}, "type": "object"}
    check({**home, **pair}, [{"a": [1], "b": ["x"]}], [{"a": ["x"]}, {"b": [1]}])


def test_a_dynamic_ref_closes_a_tree_from_outside():
    tree = {
        "$id": "tree",
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"v": True, "kids": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }
    strict = {
        "$id": "https://example.org/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {"tree": tree},
    }
    check(strict, [{"v": 1, "kids": [{"v": 2, "kids": []}]}], [{"w": 1}, {"kids": [{"w": 1}]}, {"kids": [1]}])
    check({**strict, "unevaluatedProperties": True}, [{"kids": [{"w": 1}]}, {"w": 1}], [{"kids": [1]}])


D4, D6, D7 = ({"$schema": f"http://json-schema.org/draft-0{n}/schema#"} for n in (4, 6, 7))
D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
INNER = {"$id": "../d/", "$defs": {"x": {"$id": "x", **INT}}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "urn:uuid:deadbeef-1234-ffff-ffff-4321feebdaed", "$defs": {"n": INT}, "$ref": "#/$defs/n"},
        {"$id": "urn:example:a", "$defs": {"n": {"$id": "urn:example:n", **INT}}, "$ref": "urn:example:n"},
        {"$id": "tag:example.com,2024:a", "$defs": {"n": {"$anchor": "x", **INT}}, "$ref": "#x"},
        {"$defs": {"n": {"$id": "urn:b", "$defs": {"x": {"$anchor": "x", **INT}}}}, "$ref": "urn:b#x"},
        {"$defs": {"n": {"$id": "tag:b", "$defs": {"x": INT}}}, "$ref": "tag:b#/$defs/x"},
        {"$id": "http://a/b/c.json", "$defs": {"n": INNER}, "$ref": "/d/x"},
        {"$id": "file:///a/b.json", "$defs": {"n": {"$id": "c.json", **INT}}, "$ref": "c.json"},
        {**D4, "id": "http://a/b", "definitions": {"n": {"id": "c", **INT}}, "allOf": [{"$ref": "c"}]},
        {**D4, "definitions": {"n": {"id": "#x", **INT}}, "allOf": [{"$ref": "#x"}]},
        {**D6, "$id": "http://a/", "definitions": {"n": {"$id": "#x", **INT}}, "allOf": [{"$ref": "#x"}]},
        {
            **D7,
            "$id": "http://a/b",
            "definitions": {"n": {"$id": "c", **INT}},
            "allOf": [{"$ref": "http://a/c"}],
        },
        {**D2019, "$id": "http://a/", "$defs": {"n": {"$anchor": "x", **INT}}, "$ref": "http://a/#x"},
        {"$defs": {"n": {"const": {"$id": "urn:x"}}, "m": {"$id": "urn:x", **INT}}, "$ref": "urn:x"},
        {"$defs": {"enum": {"$id": "urn:y", **INT}}, "$ref": "urn:y"},
        {"$ref": "#/$defs/a%25b", "$defs": {"a%b": INT}},
    ],
)
def test_resources_are_found_by_any_address(schema):
    check(schema, [1], ["a", None])


def test_an_embedded_document_is_read_by_its_own_draft():
    silenced = {"$ref": "#/definitions/n", "minimum": 5}
    old = {**D7, "$id": "urn:old", "definitions": {"n": INT}, "allOf": [silenced]}
    check_ours({"$defs": {"o": old}, "$ref": "urn:old"}, [4], ["a"])
    new = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:new", "$ref": "#/$defs/n"}
    new |= {"minimum": 5, "$defs": {"n": INT}}
    check_ours({**D7, "definitions": {"o": new}, "allOf": [{"$ref": "urn:new"}]}, [5], [4, "a"])


def test_a_reference_to_true_or_false():
    check({"$defs": {"t": True, "f": False}, "anyOf": [{"$ref": "#/$defs/f"}, {"type": "null"}]}, [None], [1])
    check(
        {"$defs": {"t": True}, "properties": {"a": {"$ref": "#/$defs/t"}}, "type": "object"}, [{"a": 1}], [1]
    )


def test_a_recursive_ref_means_the_root_that_asks_for_it():
    inner = {
        "$id": "inner.json",
        "$recursiveAnchor": True,
        "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"$recursiveRef": "#"}}],
    }
    outer = {
        "$id": "http://example.org/outer.json",
        "$defs": {"in": inner},
        "anyOf": [INT, {"$ref": "inner.json"}],
    }
    check_ours({**outer, "$recursiveAnchor": True}, [1, "a", {"b": 1}, {"b": {"c": "d"}}], [1.5, {"b": None}])
    check_ours(outer, [1, "a", {"b": "c"}], [{"b": 1}])


def test_draft_3_is_refused():
    with pytest.raises(UnsupportedSchema, match="draft 3"):
        schema_to_gbnf({"$schema": "http://json-schema.org/draft-03/schema#"})


def test_an_unused_definition_is_not_looked_at():
    check({"$defs": {"broken": {"pattern": "(?=a)"}}, "type": "integer"}, [1], ["a"])
