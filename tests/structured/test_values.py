"""type, enum, const, true and false; arrays with items, counts, contains and uniqueItems."""

import itertools

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from openai_cpu_server.llama.grammar.grammar_check import ListItems, keeps_items_apart, new_trials
from openai_cpu_server.structured.languages.expr import ROOT, Ref, character, seq
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import InvalidGrammar, Options, UnsupportedSchema, Whitespace
from openai_cpu_server.structured.scalars.numbers import INTEGER
from tests.structured.making import check_schema, schema_to_lark
from tests.structured.oracle import accepts, check, check_ours, check_spelling, check_texts, compact, table

ALL = [None, True, False, 0, -3, 1.5, 1e30, "", "a", [], [1, [2]], {}, {"a": {"b": None}}]


@pytest.mark.parametrize("schema", [True, {}, {"title": "a", "default": 1, "examples": [2], "$comment": "c"}])
def test_no_constraint_takes_every_value(schema):
    check(schema, ALL, [])


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("null", [None]),
        ("boolean", [True, False]),
        ("integer", [0, -3, 12345678901234567890]),
        ("number", [0, -3, 1.5, 1e30, 1e-7, -0.0]),
        ("string", ["", "a", 'é\n"\\\u2028', "😀", "\x00\x1f\x7f"]),
        ("array", [[], [1, "a", None, {}]]),
        ("object", [{}, {"a": 1, "": [], 'é"': {}}]),
    ],
)
def test_type(name, accepted):
    others = [v for v in (None, True, 0.5, "a", [], {}) if type(v) not in {type(a) for a in accepted}]
    check({"type": name}, accepted, others)


test_spelling = table({
    "an integer has no point": [({"type": "integer"}, ["0", "-1", "10"], ["0.5", "1.0", "01", "+1"])],
    "a number has every spelling of JSON and no other": [
        ({"type": "number"}, ["0", "-0", "1.50", "1e5", "1E+5", "-1.5e-3"],
         ["01", ".5", "1.", "+1", "1e", "NaN", "Infinity", "0x1", "--1"])],
    "a string has escapes but no lone surrogate and no raw control character": [
        ({"type": "string"},
         ['"\\u00e9"', '"\\ud83d\\ude00"', '"\\/"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"é😀"'],
         ['"\\ud83d"', '"\\udc00"', '"\\x41"', '"\n"', '"a', "'a'", '"\\u12"'])],
}, check_spelling)  # fmt: skip


test_nullable_is_of_openapi_and_adds_null = table({
    "beside a type": [({"type": "string", "nullable": null}, ["a", None][:1 + null], [1, None][:2 - null])
                      for null in (True, False)],
    "beside other keywords": [
        ({"type": "object", "nullable": True, "required": ["a"]}, [None, {"a": 1}], [{}, "a"])],
    "of a property": [
        ({"properties": {"a": {"type": "integer", "nullable": True}}}, [{"a": None}, {"a": 1}], [{"a": ""}])],
}, check_ours)  # fmt: skip


FLEXIBLE = Options(whitespace=Whitespace.FLEXIBLE)
CLOSED = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "on": {"type": "boolean"}},
    "required": ["name"],
    "additionalProperties": False,
}
NODE = {
    "type": "object",
    "properties": {
        "v": {"type": "string"},
        "c": {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True},
    },
    "additionalProperties": False,
}
TREE = {
    "properties": {
        "names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "inner": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["names"],
}


test_values = table({
    "enum of all kinds": [
        ({"enum": ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}]},
         ["red", 'a"b', "é", 1, -2.5, True, None, [1, "x"], {"a": 1, "b": [None]}, {}],
         ["re", "redd", 2, False, [], [1], {"a": 1}, {"a": 1, "b": [None], "c": 1}])],
    "type list": [
        ({"type": ["integer", "null"]}, [1, None], ["a", 1.5, []]),
        ({"type": ["number", "integer"]}, [1, 1.5], ["a", None])],
    "enum is filtered by its siblings": [
        ({"enum": ["a", "bb", 1, None], "type": "string", "maxLength": 1}, ["a"], ["bb", 1, None]),
        ({"enum": [1, 5, 9, "x"], "minimum": 5}, [5, 9, "x"], [1]),
        ({"enum": ["ab", "cd"], "pattern": "^a"}, ["ab"], ["cd"])],
    "true is not one": [({"enum": [1, False]}, [1, False], [True, 0])],
    "const": [
        ({"const": "x"}, ["x"], ["y", "", None]),
        ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}],
         [{}, {"a": [1]}, {"a": [1, {"b": 0}]}]),
        ({"const": 1.0}, [1, 1.0], [1.5, 2]),
        ({"const": None}, [None], [False, 0])],
    "an object of constants must be complete and closed": [
        ({"const": {"a": 1, "b": 2}}, [{"a": 1, "b": 2}], [{"a": 1}, {"b": 2}, {"a": 1, "b": 2, "c": 3}])],
})  # fmt: skip


D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
INT, STR = {"type": "integer"}, {"type": "string"}
DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
VALUES = [f"v{i}" for i in range(20)]


def array(**more):
    return {"type": "array", **more}


test_arrays = table({
    "items": [
        (array(items=INT), [[], [1], [1, 2, 3]], [["a"], [1, "a"], 1]),
        (array(items=False), [[]], [[1]]),
        (array(), [[], [1, "a", [None]]], [{}])],
    "counts": [
        (array(items=INT, minItems=2, maxItems=3), [[1, 2], [1, 2, 3]], [[], [1], [1, 2, 3, 4]]),
        (array(items=INT, minItems=1), [[1], [1] * 9], [[]]),
        (array(maxItems=0), [[]], [[1]]),
        (array(items=INT, minItems=100, maxItems=200), [[1] * 100, [1] * 200], [[1] * 99, [1] * 201])],
    "prefix items": [
        (array(prefixItems=[INT, STR]), [[], [1], [1, "a"], [1, "a", None]], [["a"], [1, 1]]),
        (array(prefixItems=[INT, STR], items=False), [[], [1, "a"]], [[1, "a", 1]]),
        (array(prefixItems=[INT, STR], items={"type": "null"}, minItems=1), [[1], [1, "a", None, None]],
         [[], [1, "a", 1]]),
        (array(prefixItems=[INT, STR, INT], minItems=2, items=False), [[1, "a"], [1, "a", 2]], [[1], []])],
    "items of the older drafts": [
        (array(**D7, items=[INT, STR], additionalItems=False), [[], [1], [1, "a"]], [["a"], [1, "a", 1]]),
        (array(**D7, items=[INT], additionalItems=STR), [[1, "a", "b"]], [[1, 1]]),
        (array(**D7, items=INT, additionalItems=False), [[1, 2, 3]], [["a"]]),
        ({**D7, "items": [True, False]}, [[1], []], [[1, "a"]])],
    "a place that nothing fits ends the array": [(array(prefixItems=[INT, False]), [[], [1]], [[1, 1]])],
    "contains": [
        (array(contains=INT), [[1], ["a", 1], ["a", 1, "b", 2]], [[], ["a"]]),
        ({"contains": True}, [["a"]], [[]]),
        (array(items={"enum": ["a", "b"]}, contains={"const": "b"}), [["b"], ["a", "b", "a"]],
         [["a"], [], ["c", "b"]])],
    "min and max contains": [
        (array(contains=INT, minContains=2), [[1, 2], [1, "a", 2]], [[1], ["a", 1]]),
        (array(contains=INT, maxContains=1), [[1], ["a", 1, "b"]], [[1, 2], [], ["a"]]),
        (array(contains=INT, minContains=0), [[], ["a"], [1]], []),
        (array(contains=INT, minContains=0, maxContains=1), [[], ["a"], [1, "a"]], [[1, 2]])],
    "contains with counts and places": [
        (array(prefixItems=[STR], contains=INT, minItems=2, maxItems=3),
         [["a", 1], ["a", "b", 1], ["a", 1, None]], [["a"], [1, 2], ["a", "b"], ["a", 1, 1, 1]])],
    "two needs at once": [
        (array(allOf=[{"contains": INT}, {"contains": STR}]), [[1, "a"], ["a", None, 1]], [[1], ["a"], []])],
    "an array that cannot be long enough is not an alternative": [
        ({"anyOf": [array(items=False, minItems=1), INT]}, [1], [[], [1]])],
    "unique items of few values": [
        (array(items={"enum": DAYS}, uniqueItems=True), [DAYS[::-1], ["sun", "mon"]], [["mon", "mon"]]),
        (array(items={"enum": VALUES}, uniqueItems=True, maxItems=2), [["v3", "v1"], ["v19"], []],
         [["v1", "v1"], ["v3", "v2", "v1"]]),
        ({"items": {"enum": [1, 2, "1", None, True]}, "uniqueItems": True}, [[1, True], [1, "1", None], []],
         [[1, 1], ["1", 2, "1"], [None, None]]),
        (array(items={"enum": ["a", "b", "c"]}, uniqueItems=True),
         [list(p) for n in range(4) for p in itertools.permutations("abc", n)],
         [["a", "a"], ["a", "b", "a"], ["d"]])],
    "unique items of a short range": [
        (array(items={"type": "integer", "minimum": 1, "maximum": 5}, uniqueItems=True),
         [[], [5, 1], [1, 2, 3, 4, 5]], [[1, 1], [6], [2, 3, 2]])],
    "unique items with counts": [
        (array(items={"enum": ["a", 1, None]}, uniqueItems=True, minItems=1, maxItems=2), [["a"], [None, 1]],
         [[], ["a", 1, None], [1, 1]]),
        (array(items={"type": "boolean"}, uniqueItems=True), [[], [True, False], [False]], [[True, True]])],
    "unique items of a pattern with few strings": [
        (array(items={"type": "string", "pattern": "^[ab]x?$"}, uniqueItems=True), [[], ["ax", "a", "b"]],
         [["a", "a"], ["c"]])],
    "many unique values come in the order of the list": [
        (array(items={"enum": VALUES[:12]}, uniqueItems=True, minItems=1), [VALUES[:12], ["v2", "v11"]],
         [[], ["v2", "v2"], ["v11", "v2", "v2"]])],
    "items of different types are unique anyway": [
        (array(prefixItems=[STR, INT, {"type": "null"}], items=False, uniqueItems=True),
         [[], ["a", 1], ["a", 1, None]], [["a", "a"], [1]])],
    "one item is always unique": [
        (array(items=STR, uniqueItems=True, maxItems=1), [[], ["a"]], [["a", "b"]])],
    "unique strings that could always be longer": [
        (array(items=STR, uniqueItems=True), [[], [""], ["a", ""], ["a", "ab", "b"], ["é", "e", '"']],
         [["a", "a"], ["", ""], ["a", "b", "a"], ["é", "é"], ['"', '"']]),
        (array(items={"type": "string", "pattern": "^[a-z]+(-[0-9]+)?$"}, uniqueItems=True),
         [["ab", "a"], ["a-1", "a-12"]], [["a-1", "b", "a-1"], ["A"]]),
        (array(items=STR, uniqueItems=True, minItems=2, maxItems=3), [["a", "b"], ["c", "b", "a"]],
         [["a"], ["a", "a"], ["a", "b", "a"], ["a", "b", "c", "d"]])],
    "unique numbers that could always be longer": [
        (array(items=INT, uniqueItems=True), [[], [0], [1, 12, 0, 10, -1], [5]],
         [[0, 0], [1, 1], [12, 1, 12]]),
        (array(items={"type": "number"}, uniqueItems=True), [[0, 0.5, 1, 1.5, 1e30]],
         [[0.5, 0.5], [1, 1.0], [0, 0]])],
    "each list of unique strings is one of its own": [
        (array(items=array(items=STR, uniqueItems=True)),
         [[["a", "b"], ["a", "c"], ["b", "a"], [], ["a"], ["a", "b"]]],
         [[["a"], ["b", "b"]], [["a", "b"], ["a", "c", "c"]]]),
        (TREE, [{"names": ["a"], "inner": [{"names": ["a", "b"]}, {"names": ["b"]}]}],
         [{"names": ["a"], "inner": [{"names": ["a"]}, {"names": ["b", "b"]}]}]),
        ({"anyOf": [array(items={"type": "string", "pattern": "^a"}, uniqueItems=True),
                    array(items={"type": "string", "pattern": "z$"}, uniqueItems=True)]},
         [["a", "ab"], ["az", "bz"], ["az", "aaz"]], [["a", "a"], ["az", "az"], ["bz", "az", "bz"]])],
    "unique values of any kind but numbers": [
        (array(items=CLOSED, uniqueItems=True),
         [[{"name": "a"}, {"name": "b"}], [{"name": "a", "on": True}, {"name": "a", "on": False}]],
         [[{"name": "a"}, {"name": "b"}, {"name": "a"}], [{"name": "a", "on": True}] * 2]),
        (array(items={"type": ["string", "object", "boolean", "null"]}, uniqueItems=True),
         [["a", None, {"a": 1}, {}, True, "true"], [{"a": 1, "b": 2}, {"a": 1, "b": [2]}]],
         [[None, None], [{}, {}], [True, False, True], [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
          [{"a": 1}, {"a": 1.0}], [{"a": [10]}, {"a": [1e1]}]]),
        (array(items=array(items={"type": "number"}), uniqueItems=True),
         [[[1, 2], [1, 3], [], [12]]], [[[1, 2], [1.0, 2]], [[], []]]),
        (array(items={"type": ["string", "boolean", "array"]}, uniqueItems=True),
         [["True", True, [True], ["True"], [1], ["1"]]], [[[True], [True]], [[0], [0.0]]]),
        (array(items={"type": "string", "maxLength": 1}, uniqueItems=True), [["a", "", "b"]], [["a", "a"]]),
        (array(items={"type": "string", "format": "date"}, uniqueItems=True),
         [["2026-01-01", "2026-01-02"]], [["2026-01-01", "2026-01-01"]]),
        (array(items={"type": "integer", "minimum": 0, "maximum": 65535}, uniqueItems=True),
         [[80, 8080, 808, 0]], [[80, 8080, 80], [0, 0]])],
    "lists of unique values within one another": [
        (NODE, [{"c": [{"v": "a", "c": [{"v": "b"}, {"v": "c"}]}, {"v": "b"}]},
                {"c": [{"c": [{"v": "b"}]}, {"c": [{"v": "b"}, {"v": "c"}]}, {"v": "b"}]}],
         [{"c": [{"v": "a", "c": [{"v": "b"}, {"v": "b"}]}]},
          {"c": [{"c": [{"v": "b"}]}, {"c": [{"v": "b"}]}]},
          {"c": [{"v": "a", "c": [{"v": "b"}]}, {"v": "b"}, {"v": "b"}]}])],
    "unique items may be off": [(array(items=INT, uniqueItems=False), [[1, 1]], [])],
})  # fmt: skip


def test_values_that_several_alternatives_spell_are_one_value():
    ones = array(items={"anyOf": [{"enum": [1, 2]}, {"type": "integer", "minimum": 2, "maximum": 3}]})
    check({**ones, "uniqueItems": True}, [[1, 2, 3], [2, 3, 1], []], [[2, 2], [1, 1], [3, 2, 3]])
    tens = array(items={"anyOf": [{"const": 2.0}, {"type": "integer", "minimum": 1, "maximum": 3}]})
    grammar = check_schema({**tens, "uniqueItems": True})
    check_texts(grammar, ["[2.0]", "[2,1]", "[1,2.0]"], ["[2.0,2]", "[2,2.0]", "[2.0,2.0]", "[2,2]"])
    texts = array(items={"anyOf": [{"enum": ["a", "b"]}, {"type": "string", "pattern": "^[ab]$"}]})
    check({**texts, "uniqueItems": True}, [["a", "b"], ["b", "a"]], [["a", "a"], ["b", "a", "b"]])


def test_equal_strings_may_be_spelt_in_two_ways():
    grammar = check_schema(array(items=STR, uniqueItems=True))
    check_texts(grammar, ['["a","\\u0062"]'], ['["a","\\u0061"]', '["😀","\\ud83d\\ude00"]', '["/","\\/"]'])


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('[{"name":"a","on":true},{"name":"a","on":', "f"),
        ('[{"name":"a","on":true},{"name":"a","on":false},{"name":"a"', "}"),
        ('[{"name":"a","on":true},{"name":"a","on":false},{"name":"a"},{"name"', ":"),
        ('[{"name":"a","on":true},{"name":"b"},{"name":"a"', ",}"),
    ],
)
def test_bytes_that_lead_to_a_second_equal_item_are_not_allowed(text, allowed):
    following = check_schema(array(items=CLOSED, uniqueItems=True)).after(text.encode())
    assert following.allowed == allowed.encode()


def test_a_name_is_not_ended_where_all_objects_with_it_are_in_the_list():
    objects = [{"name": "a"}, {"name": "a", "on": True}, {"name": "a", "on": False}]
    for options in (None, FLEXIBLE):
        grammar = check_schema(array(items=CLOSED, uniqueItems=True), options)
        for count, is_allowed in ((3, False), (2, True)):
            text = compact(objects[:count])[:-1] + ',{"name":"a'
            assert (b'"' in grammar.after(text.encode()).allowed) is is_allowed


@pytest.mark.parametrize(
    ("taken", "name", "allowed"),
    [(["x"], "", "x"), (["x y"], "x", '"'), (["x"], "x", " "), (["x", "x y"], "", "")],
)
def test_a_blank_within_a_string_makes_an_item_differ(taken, name, allowed):
    item = {**CLOSED, "properties": {"name": {"enum": ["x", "x y"]}}}
    text = compact([{"name": each} for each in taken])[:-1] + ',{"name":"' + name
    for options in (None, FLEXIBLE):
        following = check_schema(array(items=item, uniqueItems=True), options).after(text.encode())
        assert following.allowed == allowed.encode()


class WithPair:
    """Tokens for each byte, for the end, and for two equal items."""

    tokens = (*(bytes([i]) for i in range(256)), b"<end>", b'"","",')
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("begin", [b"[", b'["a",'])
def test_a_token_of_two_equal_items_is_not_taken(begin):
    lark = schema_to_lark(array(items={"type": "string", "maxLength": 9}, uniqueItems=True))
    tokenizer = LLTokenizer(TokenizerWrapper(WithPair()))
    matcher, items = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark)), ListItems()
    for byte in begin:
        assert matcher.consume_token(byte)
        items = items.behind(bytes([byte]), matcher)
    assert matcher.validate_tokens([257]) == 1
    assert not keeps_items_apart(items, 257, matcher, WithPair.tokens.__getitem__, new_trials())


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_numbers_of_a_unique_list_are_never_read_in_parts(kind):
    """Otherwise each beginning would count as an item. White space after numbers makes them read in parts."""
    unique = array(items={"type": kind}, uniqueItems=True)
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        check_schema(unique, FLEXIBLE)
    check({"anyOf": [unique, {"const": [12, 3]}]}, [[12, 3], [1, 12]], [[1, 1], [12, 3, 12]])
    rules = {ROOT: seq(Ref("list=first"), character("7")), "list=first": Ref("number"), "number": INTEGER}
    with pytest.raises(InvalidGrammar, match="numbers of a list with 'uniqueItems'"):
        Translation(rules)


@pytest.mark.parametrize("counts", [{}, {"minItems": 2}, {"maxItems": 3}, {"minItems": 1, "maxItems": 200}])
def test_hundreds_of_values_may_be_unique(counts):
    values = [f"v{i}" for i in range(200)]
    schema = array(items={"enum": values}, uniqueItems=True, **counts)
    check(schema, [["v0", "v9", "v199"], values[1:3]], [["v9", "v9"], ["v3", "v3", "v3"]])
    assert accepts(schema, compact(values)) == ("maxItems" not in counts or counts["maxItems"] == 200)
