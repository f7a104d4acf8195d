"""$ref, $defs, definitions, $id, $anchor, recursion; $schema decides about siblings."""

import pytest

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import InvalidSchema, UnsupportedSchema
from tests.structured.oracle import check, check_ours, table

INT = {"type": "integer"}
CLOSED = {"additionalProperties": False}
TREE = {"type": "object", "properties": {"kids": {"items": {"$dynamicRef": "#node"}}}, **CLOSED}


LISTS = {
    name: {"$id": name, "$ref": "list", "$defs": {"x": {"$dynamicAnchor": "item", "type": kind}}}
    for name, kind in (("numbers", "number"), ("strings", "string"))
}
LISTS["l"] = {"$id": "list", "type": "array", "items": {"$dynamicRef": "#item"},
              "$defs": {"y": {"$dynamicAnchor": "item"}}}  # fmt: skip
HOME = {"$id": "https://example.org/root", "$defs": LISTS}
NODES = {"v": True, "kids": {"type": "array", "items": {"$dynamicRef": "#node"}}}
OPEN_TREE = {"$id": "tree", "$dynamicAnchor": "node", "type": "object", "properties": NODES}
OUTSIDE = {"$id": "https://a/strict", "$dynamicAnchor": "node", "$ref": "tree", "$defs": {"tree": OPEN_TREE}}
CLOSED_LATE = {"unevaluatedProperties": False}
test_cases = table({
    "pointers are unescaped": [({"$defs": {"a/b~c d": INT}, "$ref": "#/$defs/a~1b~0c%20d"}, [1], ["a"])],
    "recursion": [
        ({"type": "object", "properties": {"v": INT, "kids": {"type": "array", "items": {"$ref": "#"}}},
          "required": ["v"], "additionalProperties": False},
         [{"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]}], [{}, {"v": 1, "kids": [{}]}])],
    "mutual recursion": [
        ({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
          "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "additionalProperties": False}},
          "$ref": "#/$defs/a"}, [[], [{}], [{"a": [{}]}]], [{}, [{"a": {}}], [1]])],
    "endless recursion is not an alternative": [
        ({"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
          "anyOf": [{"$ref": "#/$defs/n"}, INT]}, [1], [{}, {"n": {}}])],
    "ids": [
        ({"$id": "https://example.org/root.json", "$defs": {"x": {"$id": "sub/x.json", "$defs": {"y": INT},
          "$ref": "#/$defs/y"}}, "$ref": "sub/x.json"}, [1], ["a"]),
        ({"$id": "https://example.org/r.json", "$defs": {"n": INT},
          "$ref": "https://example.org/r.json#/$defs/n"}, [1], ["a"])],
    "siblings count since 2019": [({"$defs": {"n": INT}, "$ref": "#/$defs/n", "minimum": 5}, [5], [4, "a"])],
    "siblings are silent in the older drafts": [
        ({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"n": INT},
          "$ref": "#/definitions/n", "minimum": 5}, [4, 5], ["a"])],
    "an id beside a silencing ref is not a base": [
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://example.org/base/",
          "definitions": {"s": {"$id": "http://example.org/other/n.json", "type": "string"},
          "i": {"$id": "n.json", **INT}}, "allOf": [{"$id": "http://example.org/other/", "$ref": "n.json"}]},
         [1], ["a"])],
    "a dynamic ref with one anchor is a ref": [
        ({"items": {"$dynamicRef": "#x"}, "type": "array", "$defs": {"a": {"$dynamicAnchor": "x", **INT}}},
         [[1], []], [["a"]]),
        ({"$dynamicRef": "#x", "$defs": {"a": {"$anchor": "x", **INT}}}, [1], ["a"]),
        ({"$dynamicAnchor": "node", **TREE}, [{}, {"kids": [{"kids": []}]}], [{"a": 1}, {"kids": [1]}])],
    "a dynamic anchor of the root is the outermost": [
        ({"$id": "https://example.org/strict", "$dynamicAnchor": "node", "$ref": "tree", "required": ["kids"],
          "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", **TREE}}},
         [{"kids": []}, {"kids": [{"kids": []}]}], [{}, {"kids": [{}]}])],
    "a dynamic ref depends on the path to it": [
        ({**HOME, "anyOf": [{"$ref": "numbers"}, {"$ref": "strings"}]}, [[1, 2], ["a"], []],
         [[1, "a"], [None], 1]),
        ({**HOME, "$ref": "list"}, [[1, "a", None]], [1]),
        ({**HOME, "properties": {"a": {"$ref": "numbers"}, "b": {"$ref": "strings"}}, "type": "object"},
         [{"a": [1], "b": ["x"]}], [{"a": ["x"]}, {"b": [1]}])],
    "a dynamic ref closes a tree from outside": [
        ({**OUTSIDE, **CLOSED_LATE}, [{"v": 1, "kids": [{"v": 2, "kids": []}]}],
         [{"w": 1}, {"kids": [{"w": 1}]}, {"kids": [1]}]),
        (OUTSIDE, [{"kids": [{"w": 1}]}, {"w": 1}], [{"kids": [1]}])],
    "a reference to true or false": [
        ({"$defs": {"t": True, "f": False}, "anyOf": [{"$ref": "#/$defs/f"}, {"type": "null"}]}, [None], [1]),
        ({"$defs": {"t": True}, "properties": {"a": {"$ref": "#/$defs/t"}}, "type": "object"}, [{"a": 1}],
         [1])],
    "an unused definition is not compiled": [
        ({"$defs": {"broken": {"pattern": "(?=a)"}}, "type": "integer"}, [1], ["a"])],
})  # fmt: skip


D4, D6, D7 = ({"$schema": f"http://json-schema.org/draft-0{n}/schema#"} for n in (4, 6, 7))
D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
INNER = {"$id": "../d/", "$defs": {"x": {"$id": "x", **INT}}}
D2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
SILENT = {"$ref": "#/definitions/n", "minimum": 5}
OLD = {**D7, "$id": "urn:old", "definitions": {"n": INT}, "allOf": [SILENT]}
NEW = {**D2020, "$id": "urn:new", "$ref": "#/$defs/n", "minimum": 5, "$defs": {"n": INT}}
RECURSIVE = {
    "$id": "inner.json",
    "$recursiveAnchor": True,
    "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"$recursiveRef": "#"}}],
}
OUTER = {"$id": "http://a/outer.json", "$defs": {"in": RECURSIVE}, "anyOf": [INT, {"$ref": "inner.json"}]}
test_ours = table({
    "a reference into any place": [
        ({"properties": {"a": {"items": [INT]}, "b": {"$ref": "#/properties/a/items/0"}}, "required": ["b"],
          "type": "object"}, [{"b": 1}], [{"b": "x"}])],
    "anchors": [
        ({"$defs": {"x": {"$anchor": "n", **INT}}, "$ref": "#n"}, [1], ["a"]),
        ({"definitions": {"x": {"id": "#n", **INT}}, "$ref": "#n"}, [1], ["a"])],
    "an embedded document is read by its own draft": [
        ({"$defs": {"o": OLD}, "$ref": "urn:old"}, [4], ["a"]),
        ({**D7, "definitions": {"o": NEW}, "allOf": [{"$ref": "urn:new"}]}, [5], [4, "a"])],
    "a recursive ref means the root that has a recursive anchor": [
        ({"$recursiveRef": "#/$defs/n", "$defs": {"n": INT}}, [1], ["a"]),
        ({**OUTER, "$recursiveAnchor": True}, [1, "a", {"b": 1}, {"b": {"c": "d"}}], [1.5, {"b": None}]),
        (OUTER, [1, "a", {"b": "c"}], [{"b": 1}])],
}, check_ours)  # fmt: skip


@pytest.mark.parametrize(
    "schema",
    [
        *({"$ref": "#"}, {"anyOf": [INT, {"$ref": "#"}]}),
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_reference_that_leads_back_to_itself_is_refused(schema):
    with pytest.raises(InvalidSchema, match="itself"):
        compile_schema(schema)


@pytest.mark.parametrize(
    "target",
    [
        *("http://[", "#/oneOf/-1", "#/$defs/none", "#none", "other.json", "https://example.org/s.json"),
        "#/type/x",
    ],
)
def test_a_reference_to_nothing_is_refused(target):
    with pytest.raises(UnsupportedSchema) as caught:
        compile_schema({"properties": {"a": {"$ref": target}}, "type": "object"})
    assert (caught.value.path, caught.value.keyword) == ("/properties/a", "$ref")


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
        {**D7, "$id": "http://a/b", "definitions": {"n": {"$id": "c", **INT}},
         "allOf": [{"$ref": "http://a/c"}]},
        {**D2019, "$id": "http://a/", "$defs": {"n": {"$anchor": "x", **INT}}, "$ref": "http://a/#x"},
        {"$defs": {"n": {"const": {"$id": "urn:x"}}, "m": {"$id": "urn:x", **INT}}, "$ref": "urn:x"},
        {"$defs": {"enum": {"$id": "urn:y", **INT}}, "$ref": "urn:y"},
        {"$ref": "#/$defs/a%25b", "$defs": {"a%b": INT}},
    ],
)  # fmt: skip
def test_resources_are_found_by_any_address(schema):
    check(schema, [1], ["a", None])


def test_draft_3_is_refused():
    with pytest.raises(UnsupportedSchema, match="draft 3"):
        compile_schema({"$schema": "http://json-schema.org/draft-03/schema#"})


@pytest.mark.parametrize("reference", ["item.json", "./item.json", "/dir/item.json", "root.json#/$defs/n"])
def test_relative_references_resolve_under_any_scheme(reference: str) -> None:
    item = {"$id": "app://host/dir/item.json", "type": "integer"}
    schema = {"$id": "app://host/dir/root.json", "items": {"$ref": reference}, "$defs": {"x": item, "n": INT}}
    check_ours(schema, [[1]], [["a"]])
    with pytest.raises(UnsupportedSchema, match="leads to nothing"):
        compile_schema({**schema, "items": {"$ref": "mailto:item.json"}})
