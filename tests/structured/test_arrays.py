"""items, prefixItems, additionalItems, counts, contains, uniqueItems."""

import itertools

import pytest

from tests.structured.making import check_schema
from tests.structured.oracle import accepts, check, check_texts, compact

D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
INT, STR = {"type": "integer"}, {"type": "string"}


def array(**more):
    return {"type": "array", **more}


def test_items():
    check(array(items=INT), [[], [1], [1, 2, 3]], [["a"], [1, "a"], 1])
    check(array(items=False), [[]], [[1]])
    check(array(), [[], [1, "a", [None]]], [{}])


def test_counts():
    check(array(items=INT, minItems=2, maxItems=3), [[1, 2], [1, 2, 3]], [[], [1], [1, 2, 3, 4]])
    check(array(items=INT, minItems=1), [[1], [1] * 9], [[]])
    check(array(maxItems=0), [[]], [[1]])
    check(array(items=INT, minItems=100, maxItems=200), [[1] * 100, [1] * 200], [[1] * 99, [1] * 201])


def test_prefix_items():
    check(array(prefixItems=[INT, STR]), [[], [1], [1, "a"], [1, "a", None]], [["a"], [1, 1]])
    check(array(prefixItems=[INT, STR], items=False), [[], [1, "a"]], [[1, "a", 1]])
    check(
        array(prefixItems=[INT, STR], items={"type": "null"}, minItems=1),
        [[1], [1, "a", None, None]],
        [[], [1, "a", 1]],
    )
    check(array(prefixItems=[INT, STR, INT], minItems=2, items=False), [[1, "a"], [1, "a", 2]], [[1], []])


def test_items_of_the_older_drafts():
    check(array(**D7, items=[INT, STR], additionalItems=False), [[], [1], [1, "a"]], [["a"], [1, "a", 1]])
    check(array(**D7, items=[INT], additionalItems=STR), [[1, "a", "b"]], [[1, 1]])
    check(array(**D7, items=INT, additionalItems=False), [[1, 2, 3]], [["a"]])


def test_a_place_that_nothing_fits_ends_the_array():
    check(array(prefixItems=[INT, False]), [[], [1]], [[1, 1]])


def test_contains():
    check(array(contains=INT), [[1], ["a", 1], ["a", 1, "b", 2]], [[], ["a"]])
    check(
        array(items={"enum": ["a", "b"]}, contains={"const": "b"}),
        [["b"], ["a", "b", "a"]],
        [["a"], [], ["c", "b"]],
    )


def test_min_and_max_contains():
    check(array(contains=INT, minContains=2), [[1, 2], [1, "a", 2]], [[1], ["a", 1]])
    check(array(contains=INT, maxContains=1), [[1], ["a", 1, "b"]], [[1, 2], [], ["a"]])
    check(array(contains=INT, minContains=0), [[], ["a"], [1]], [])
    check(array(contains=INT, minContains=0, maxContains=1), [[], ["a"], [1, "a"]], [[1, 2]])


def test_contains_with_counts_and_places():
    schema = array(prefixItems=[STR], contains=INT, minItems=2, maxItems=3)
    check(schema, [["a", 1], ["a", "b", 1], ["a", 1, None]], [["a"], [1, 2], ["a", "b"], ["a", 1, 1, 1]])


def test_two_needs_at_once():
    check(array(allOf=[{"contains": INT}, {"contains": STR}]), [[1, "a"], ["a", None, 1]], [[1], ["a"], []])


def test_an_array_that_cannot_be_long_enough_is_no_alternative():
    check({"anyOf": [array(items=False, minItems=1), INT]}, [1], [[], [1]])


def test_unique_items_of_few_values():
    schema = array(items={"enum": ["a", "b", "c"]}, uniqueItems=True)
    every = [list(p) for n in range(4) for p in itertools.permutations("abc", n)]
    check(schema, every, [["a", "a"], ["a", "b", "a"], ["d"]])


def test_unique_items_in_any_order_as_long_as_there_are_few_sets_of_them():
    days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    check(array(items={"enum": days}, uniqueItems=True), [days[::-1], ["sun", "mon"]], [["mon", "mon"]])
    many = [f"v{i}" for i in range(20)]
    check(
        array(items={"enum": many}, uniqueItems=True, maxItems=2),
        [["v3", "v1"], ["v19"], []],
        [["v1", "v1"], ["v3", "v2", "v1"]],
    )


def test_unique_items_of_a_short_range():
    item = {"type": "integer", "minimum": 1, "maximum": 5}
    check(array(items=item, uniqueItems=True), [[], [5, 1], [1, 2, 3, 4, 5]], [[1, 1], [6], [2, 3, 2]])


def test_unique_items_with_counts():
    schema = array(items={"enum": ["a", 1, None]}, uniqueItems=True, minItems=1, maxItems=2)
    check(schema, [["a"], [None, 1]], [[], ["a", 1, None], [1, 1]])
    check(array(items={"type": "boolean"}, uniqueItems=True), [[], [True, False], [False]], [[True, True]])


def test_many_unique_values_come_in_the_order_of_the_list():
    values = [f"v{i}" for i in range(12)]
    check(
        array(items={"enum": values}, uniqueItems=True, minItems=1),
        [values, ["v2", "v11"]],
        [[], ["v2", "v2"], ["v11", "v2", "v2"]],
    )


def test_unique_items_of_a_pattern_with_few_strings():
    item = {"type": "string", "pattern": "^[ab]x?$"}
    check(array(items=item, uniqueItems=True), [[], ["ax", "a", "b"]], [["a", "a"], ["c"]])


def test_items_of_different_types_are_unique_anyway():
    places = array(prefixItems=[STR, INT, {"type": "null"}], items=False, uniqueItems=True)
    check(places, [[], ["a", 1], ["a", 1, None]], [["a", "a"], [1]])


def test_one_item_is_always_unique():
    check(array(items=STR, uniqueItems=True, maxItems=1), [[], ["a"]], [["a", "b"]])


def test_unique_items_may_be_off():
    check(array(items=INT, uniqueItems=False), [[1, 1]], [])


def test_values_that_several_alternatives_spell_are_one_value():
    ones = array(items={"anyOf": [{"enum": [1, 2]}, {"type": "integer", "minimum": 2, "maximum": 3}]})
    check({**ones, "uniqueItems": True}, [[1, 2, 3], [2, 3, 1], []], [[2, 2], [1, 1], [3, 2, 3]])
    tens = array(items={"anyOf": [{"const": 2.0}, {"type": "integer", "minimum": 1, "maximum": 3}]})
    grammar = check_schema({**tens, "uniqueItems": True})
    check_texts(grammar, ["[2.0]", "[2,1]", "[1,2.0]"], ["[2.0,2]", "[2,2.0]", "[2.0,2.0]", "[2,2]"])
    texts = array(items={"anyOf": [{"enum": ["a", "b"]}, {"type": "string", "pattern": "^[ab]$"}]})
    check({**texts, "uniqueItems": True}, [["a", "b"], ["b", "a"]], [["a", "a"], ["b", "a", "b"]])


@pytest.mark.parametrize("counts", [{}, {"minItems": 2}, {"maxItems": 3}, {"minItems": 1, "maxItems": 200}])
def test_hundreds_of_values_may_be_unique(counts):
    values = [f"v{i}" for i in range(200)]
    schema = array(items={"enum": values}, uniqueItems=True, **counts)
    check(schema, [["v0", "v9", "v199"], values[1:3]], [["v9", "v9"], ["v3", "v3", "v3"]])
    assert accepts(schema, compact(values)) == ("maxItems" not in counts or counts["maxItems"] == 200)
