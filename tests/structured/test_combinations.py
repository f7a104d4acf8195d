"""allOf, anyOf, oneOf, not, if/then/else."""

import pytest

from tests.structured.oracle import check, check_ours, table

INT, STR, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}


def kinds(*values, name="kind", **more):
    return [{"properties": {name: {"const": value}}, "required": [name], **more} for value in values]


test_cases = table({
    "all of merges": [
        ({"allOf": [{"type": "object", "properties": {"a": INT}, "required": ["a"]},
         {"properties": {"b": STR}, "required": ["b"]}]}, [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 1}],
         [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}])],
    "all of the same property": [
        ({"type": "object", "allOf": [{"properties": {"a": {"minimum": 2}}},
         {"properties": {"a": {"maximum": 4, "type": "integer"}}}]}, [{}, {"a": 2}, {"a": 4}],
         [{"a": 1}, {"a": 5}, {"a": "x"}])],
    "closed schemas that are merged leave the common properties": [
        ({"type": "object", "allOf": [{"properties": {"a": INT, "b": INT}, "additionalProperties": False},
         {"properties": {"b": INT, "c": INT}, "additionalProperties": False}]}, [{}, {"b": 1}],
         [{"a": 1}, {"c": 1}, {"b": "x"}])],
    "any of": [
        ({"anyOf": [INT, STR]}, [1, "a"], [None, 1.5]),
        ({"anyOf": [INT, True]}, [1, "a", None], []),
        ({"type": "object", "properties": {"a": INT, "b": INT},
         "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
         [{}, {"c": 1}])],
    "one of disjoint branches": [
        ({"type": "object", "oneOf": [
            {"properties": {"kind": {"const": "circle"}, "r": INT}, "required": ["kind", "r"]},
            {"properties": {"kind": {"const": "square"}, "a": INT}, "required": ["kind", "a"]}]},
         [{"kind": "circle", "r": 1}, {"kind": "square", "a": 1}],
         [{"kind": "circle"}, {"kind": "x", "r": 1}, {}])],
    "one of overlapping branches excludes what both take": [
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 0, 2.5, "a"], [3, 1.5]),
        ({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^a"}]}, ["b", "abcd"],
         ["ab", "bcde"]),
        ({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
         [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}], [{}, {"a": 1, "b": 1}])],
    "one of a branch within another": [
        ({"oneOf": [{"type": "string"}, {"type": "string", "pattern": "^\\d+$"}]}, ["a", ""], ["12"])],
    "if then else": [
        ({"type": "object", "properties": {"country": {"enum": ["us", "nl"]}, "zip": STR},
         "required": ["country", "zip"], "if": {"properties": {"country": {"const": "us"}}},
         "then": {"properties": {"zip": {"pattern": "^\\d{5}$"}}},
         "else": {"properties": {"zip": {"pattern": "^\\d{4}[A-Z]{2}$"}}}},
         [{"country": "us", "zip": "12345"}, {"country": "nl", "zip": "1234AB"}],
         [{"country": "us", "zip": "1234AB"}, {"country": "nl", "zip": "12345"}])],
    "if without then or else": [
        ({"if": INT, "else": STR}, [1, "a"], [None]),
        ({"if": INT, "then": {"minimum": 3}}, [3, "a"], [2]),
        ({"if": INT}, [1, "a"], []),
        ({"type": "integer", "then": {"const": 0}}, [0, 12], ["a"])],
    "kinds that only the base requires": [
        ({"type": "object", "required": ["kind"], "oneOf": [
            {"properties": {"kind": {"enum": [f"a{i}", f"b{i}"]}, "v": kind}}
            for i, kind in enumerate([INT, STR] * 8)]},
         [{"kind": "a0", "v": 1}, {"kind": "b1", "v": "x"}],
         [{"kind": "a0", "v": "x"}, {"v": 1}, {"kind": "c"}])],
    "kinds that may be absent overlap": [
        ({"type": "object", "oneOf": [{"properties": {"kind": {"const": k}, k: INT}} for k in "ab"]},
         [{"kind": "a"}, {"kind": "b", "b": 1}, {"a": "x"}],
         [{}, {"kind": "a", "a": "x"}, {"kind": "c"}, {"a": 1, "b": 1}])],
    "kinds are distinguished as JSON values are": [
        ({"type": "object", "properties": {"t": {}, "a": {}}, "oneOf": [
            {"properties": {"t": {"const": c}, n: INT}, "required": ["t"]}
            for c, n in ((1, "a"), (1.0, "b"))]},
         [{"t": 1, "a": "x"}], [{"t": 1}, {"t": 1, "a": 1, "b": 1}]),
        ({"type": "object", "oneOf": kinds(1, True, "1", None, name="t")},
         [{"t": 1}, {"t": True}, {"t": None}], [{"t": 0}, {"t": "true"}])],
    "booleans as subschemas": [
        ({"anyOf": [{"allOf": [True, False]}, NULL]}, [None], [1, "a"]),
        ({"anyOf": [NULL, {"oneOf": [True, True]}]}, [None], [1]),
        ({"not": False}, [1, "a", None, {}], [])],
    "with a base beside": [
        ({"type": "string", "anyOf": [{"maxLength": 2}, {"minLength": 4}]}, ["ab", "abcd"], ["abc", 3]),
        ({"not": {"properties": {"a": STR}}}, [{"a": 1}], [1, "x", {}, {"a": "x"}, {"b": 1}])],
})  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        (INT, ["a", None, 1.5], [1]),
        ({"type": ["integer", "null"]}, ["a", 1.5, []], [1, None]),
        ({"enum": ["a", 1]}, ["b", 2, "", None, "aa", 1.5], ["a", 1]),
        ({"const": None}, [0, "a"], [None]),
        ({"minimum": 3}, [2, 2.5], [3, 4, "a"]),
        ({"type": "number", "minimum": 3}, [2, "a"], [3, 4]),
        ({"multipleOf": 2}, [1, 3], [2, 0]),
        ({"minLength": 2}, ["", "a"], ["ab", 1]),
        ({"type": "string", "pattern": "^a"}, ["b", "", 1], ["a", "ab"]),
        ({"type": "string", "format": "ipv4"}, ["x", "1.2.3"], ["1.2.3.4"]),
        ({"required": ["a"]}, [{}, {"b": 1}], [{"a": 1}, "x"]),
        ({"type": "object", "required": ["a", "b"]}, [{}, {"a": 1}, 1], [{"a": 1, "b": 1}]),
        ({"type": "object", "properties": {"a": INT}}, [1, {"a": "x"}], [{}, {"a": 1}, {"b": 1}]),
        ({"type": "object", "properties": {"a": INT}, "required": ["a"]}, [{}, {"a": "x"}], [{"a": 1}]),
        ({"type": "object", "additionalProperties": False}, [{"a": 1}, 1], [{}]),
        ({"type": "object", "patternProperties": {"^x": INT}}, [{"xa": "s"}, {"b": 1, "x": None}],
         [{"xa": 1}, {"b": 1}]),
        ({"type": "object", "minProperties": 1}, [{}], [{"a": 1}]),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, [{"b": 1}], [{"a": 1}, {}]),
        ({"type": "array", "items": INT}, [["a"], [1, "a"], 1], [[], [1]]),
        ({"type": "array", "minItems": 2}, [[], [1]], [[1, 2]]),
        ({"type": "array", "contains": INT}, [[], ["a"]], [[1], ["a", 1]]),
        ({"type": "array", "prefixItems": [INT]}, [["a"], ["a", 1]], [[], [1]]),
        ({"const": {"a": 1}}, [{}, {"a": 2}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
        ({"const": [1]}, [[], [2], [1, 1]], [[1]]),
        ({"anyOf": [INT, STR]}, [None, 1.5], [1, "a"]),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, [0, 4], [1, 2, "a"]),
        ({"not": INT}, [1], ["a"]),
        ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}, [0.5, 2, "a"], [1, 2.5]),
    ],
)  # fmt: skip
def test_not(schema, accepted, rejected):
    check_ours({"not": schema}, accepted, rejected)


def test_one_of_many_kinds_of_objects():
    def many(count, **more):
        found = kinds(*(f"k{i}" for i in range(count)), type="object", **more)
        for number, each in enumerate(found):
            each["properties"]["v"] = (STR, INT)[number % 2]
        return found

    accepted = [{"kind": "k0", "v": "a"}, {"kind": "k99", "v": 1}, {"kind": "k3"}]
    rejected = [{"kind": "k0", "v": 1}, {"kind": "x"}, {"v": 1}, 1]
    check({"oneOf": many(100)}, accepted, rejected)
    check({"oneOf": many(100, additionalProperties=False)}, accepted, [*rejected, {"kind": "k0", "w": 1}])
    named = {f"d{i}": {"allOf": [{"$ref": "#/$defs/base"}, kind]} for i, kind in enumerate(many(20))}
    base = {"properties": {"kind": STR}, "required": ["kind"]}
    some = [{"$ref": f"#/$defs/{name}"} for name in named]
    check({"$defs": {"base": base, **named}, "oneOf": some}, accepted[:1], rejected)


def switch(number):
    test = {"properties": {"kind": {"const": f"k{number}"}}}
    return {"if": test, "then": {"properties": {"v": (INT, STR)[number % 2]}, "required": ["v"]}}


def test_a_chain_of_elses():
    schema = {"properties": {"v": False}}
    for number in range(12):
        schema = {**switch(number), "else": schema}
    schema |= {"type": "object", "properties": {"kind": STR}, "required": ["kind"]}
    accepted = [{"kind": "k0", "v": 1}, {"kind": "k1", "v": "x"}, {"kind": "z"}]
    check(schema, accepted, [{"kind": "k0", "v": "x"}, {"kind": "z", "v": 1}, {}])


def test_branches_keep_the_order_in_which_the_schema_states_them():
    branch = {"properties": {"x": INT}, "required": ["x"]}
    schema = {"type": "object", "oneOf": [branch], "properties": {"y": INT}, "required": ["y"]}
    check_ours(schema, [{"x": 1, "y": 1}], [{"y": 1, "x": 1}])
