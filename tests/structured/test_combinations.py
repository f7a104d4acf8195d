"""allOf, anyOf, oneOf, not, if/then/else."""

import pytest

from openai_cpu_server.structured.options import InvalidSchema
from tests.structured.making import schema_to_gbnf
from tests.structured.oracle import check, check_ours

INT, STR = {"type": "integer"}, {"type": "string"}


def test_all_of_merges():
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": INT}, "required": ["a"]},
            {"properties": {"b": STR}, "required": ["b"]},
        ]
    }
    check(
        schema, [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 1}], [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}]
    )


def test_all_of_the_same_property():
    schema = {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"minimum": 2}}},
            {"properties": {"a": {"maximum": 4, "type": "integer"}}},
        ],
    }
    check(schema, [{}, {"a": 2}, {"a": 4}], [{"a": 1}, {"a": 5}, {"a": "x"}])


def test_closed_schemas_that_are_merged_leave_what_both_know():
    one = {"properties": {"a": INT, "b": INT}, "additionalProperties": False}
    other = {"properties": {"b": INT, "c": INT}, "additionalProperties": False}
    check({"type": "object", "allOf": [one, other]}, [{}, {"b": 1}], [{"a": 1}, {"c": 1}, {"b": "x"}])


def test_all_of_that_contradicts_itself_is_refused():
    with pytest.raises(InvalidSchema):
        schema_to_gbnf({"allOf": [INT, STR]})


def test_any_of():
    check({"anyOf": [INT, STR]}, [1, "a"], [None, 1.5])
    check({"anyOf": [INT, True]}, [1, "a", None], [])
    check(
        {
            "type": "object",
            "properties": {"a": INT, "b": INT},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}, {"c": 1}],
    )


def test_one_of_disjoint_branches():
    circle = {"properties": {"kind": {"const": "circle"}, "r": INT}, "required": ["kind", "r"]}
    square = {"properties": {"kind": {"const": "square"}, "a": INT}, "required": ["kind", "a"]}
    check(
        {"type": "object", "oneOf": [circle, square]},
        [{"kind": "circle", "r": 1}, {"kind": "square", "a": 1}],
        [{"kind": "circle"}, {"kind": "x", "r": 1}, {}],
    )


def test_one_of_overlapping_branches_excludes_what_both_take():
    check({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 0, 2.5, "a"], [3, 1.5])
    check(
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "pattern": "^a"}]},
        ["b", "abcd"],
        ["ab", "bcde"],
    )
    schema = {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    check(schema, [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}], [{}, {"a": 1, "b": 1}])


def test_one_of_a_branch_within_another():
    check({"oneOf": [{"type": "string"}, {"type": "string", "pattern": "^\\d+$"}]}, ["a", ""], ["12"])


def test_one_of_equal_branches_takes_nothing():
    with pytest.raises(InvalidSchema):
        schema_to_gbnf({"oneOf": [STR, STR]})


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
        (
            {"type": "object", "patternProperties": {"^x": INT}},
            [{"xa": "s"}, {"b": 1, "x": None}],
            [{"xa": 1}, {"b": 1}],
        ),
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
)
def test_not(schema, accepted, rejected):
    check_ours({"not": schema}, accepted, rejected)


def test_if_then_else():
    schema = {
        "type": "object",
        "properties": {"country": {"enum": ["us", "nl"]}, "zip": STR},
        "required": ["country", "zip"],
        "if": {"properties": {"country": {"const": "us"}}},
        "then": {"properties": {"zip": {"pattern": "^\\d{5}$"}}},
        "else": {"properties": {"zip": {"pattern": "^\\d{4}[A-Z]{2}$"}}},
    }
    check(
        schema,
        [{"country": "us", "zip": "12345"}, {"country": "nl", "zip": "1234AB"}],
        [{"country": "us", "zip": "1234AB"}, {"country": "nl", "zip": "12345"}],
    )


def test_if_without_then_or_else():
    check({"if": INT, "else": STR}, [1, "a"], [None])
    check({"if": INT, "then": {"minimum": 3}}, [3, "a"], [2])
    check({"if": INT}, [1, "a"], [])


def test_branches_keep_the_order_in_which_the_schema_states_them():
    schema = {
        "type": "object",
        "oneOf": [{"properties": {"x": INT}, "required": ["x"]}],
        "properties": {"y": INT},
        "required": ["y"],
    }
    check_ours(schema, [{"x": 1, "y": 1}], [{"y": 1, "x": 1}])


def kinds(count, **more):
    return [
        {
            "type": "object",
            "properties": {"kind": {"const": f"k{i}"}, "v": {"type": ("string", "integer")[i % 2]}},
            "required": ["kind"],
            **more,
        }
        for i in range(count)
    ]


def test_one_of_many_kinds_of_objects():
    accepted = [{"kind": "k0", "v": "a"}, {"kind": "k99", "v": 1}, {"kind": "k3"}]
    rejected = [{"kind": "k0", "v": 1}, {"kind": "x"}, {"v": 1}, 1]
    check({"oneOf": kinds(100)}, accepted, rejected)
    check({"oneOf": kinds(100, additionalProperties=False)}, accepted, [*rejected, {"kind": "k0", "w": 1}])
    named = {f"d{i}": {"allOf": [{"$ref": "#/$defs/base"}, kind]} for i, kind in enumerate(kinds(20))}
    base = {"properties": {"kind": STR}, "required": ["kind"]}
    some = [{"$ref": f"#/$defs/{name}"} for name in named]
    check({"$defs": {"base": base, **named}, "oneOf": some}, accepted[:1], rejected)


def test_kinds_that_only_the_base_requires():
    some = [
        {"properties": {"kind": {"enum": [f"a{i}", f"b{i}"]}, "v": kind}}
        for i, kind in enumerate([INT, STR] * 8)
    ]
    schema = {"type": "object", "required": ["kind"], "oneOf": some}
    check(
        schema,
        [{"kind": "a0", "v": 1}, {"kind": "b1", "v": "x"}],
        [{"kind": "a0", "v": "x"}, {"v": 1}, {"kind": "c"}],
    )


def test_kinds_that_may_be_absent_overlap():
    one, other = ({"properties": {"kind": {"const": k}, k: INT}} for k in "ab")
    check(
        {"type": "object", "oneOf": [one, other]},
        [{"kind": "a"}, {"kind": "b", "b": 1}, {"a": "x"}],
        [{}, {"kind": "a", "a": "x"}, {"kind": "c"}, {"a": 1, "b": 1}],
    )


def test_kinds_are_told_apart_as_json_values_are():
    one, other = (
        {"properties": {"t": {"const": c}, n: INT}, "required": ["t"]} for c, n in ((1, "a"), (1.0, "b"))
    )
    check(
        {"type": "object", "properties": {"t": {}, "a": {}}, "oneOf": [one, other]},
        [{"t": 1, "a": "x"}],
        [{"t": 1}, {"t": 1, "a": 1, "b": 1}],
    )
    some = [{"properties": {"t": {"const": c}}, "required": ["t"]} for c in (1, True, "1", None)]
    check({"type": "object", "oneOf": some}, [{"t": 1}, {"t": True}, {"t": None}], [{"t": 0}, {"t": "true"}])


@pytest.mark.parametrize("is_required", [True, False])
def test_many_ifs_on_one_property(is_required):
    tests = [
        {
            "if": {"properties": {"kind": {"const": f"k{i}"}}},
            "then": {"properties": {"v": (INT, STR)[i % 2]}, "required": ["v"]},
        }
        for i in range(20)
    ]
    kind = {"properties": {"kind": {"enum": [f"k{i}" for i in range(20)]}, "v": {}}}
    schema = {"type": "object", **kind, "allOf": tests, "required": ["kind"] if is_required else []}
    check(
        schema,
        [{"kind": "k0", "v": 1}, {"kind": "k19", "v": "x"}],
        [{"kind": "k0", "v": "x"}, {"kind": "k1"}, {}],
    )


def test_a_chain_of_elses():
    schema = {"properties": {"v": False}}
    for i in range(12):
        test = {"properties": {"kind": {"const": f"k{i}"}}}
        schema = {"if": test, "then": {"properties": {"v": (INT, STR)[i % 2]}}, "else": schema}
    base = {"type": "object", "properties": {"kind": STR}, "required": ["kind"]}
    check(
        {**base, **schema},
        [{"kind": "k0", "v": 1}, {"kind": "k1", "v": "x"}, {"kind": "z"}],
        [{"kind": "k0", "v": "x"}, {"kind": "z", "v": 1}, {}],
    )
