"""Hostile schemas: each is compiled or refused by counting, with a clear error, never by running out."""

import contextlib
import json
import sys
import unicodedata
from collections import defaultdict

import msgspec
import pytest

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource, MadeGrammar
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import compile_schema, grammar_maker, regex_rules
from openai_cpu_server.structured.languages.automaton import build_automaton
from openai_cpu_server.structured.languages.charset import DIGITS, CharSet
from openai_cpu_server.structured.languages.expr import (
    ALL,
    NOTHING,
    Chars,
    Text,
    any_of,
    both,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.lark.conflicts import conflicts_among
from openai_cpu_server.structured.lark.plan import Work, lead_of_char
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import (
    Additional,
    Budget,
    Limits,
    Options,
    SchemaTooLarge,
    UnsupportedSchema,
)
from openai_cpu_server.structured.scalars.regex import search_language
from openai_cpu_server.structured.scalars.regex_parser import unicode_property
from openai_cpu_server.structured.writing.grammar import text_length
from tests.structured.chains import chain
from tests.structured.making import peak_bytes

pytestmark = pytest.mark.thorough


def nested(wrap, depth, inner):
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def doubling(length, word):
    return chain(length, lambda n: {word: [n, n]}, {"minimum": 1})


def choices(number, word="anyOf"):
    return {"allOf": [{word: [{"required": [f"{x}{i}"]} for x in "abc"]} for i in range(number)]}


OBJECT, NULL = {"type": "object"}, {"type": "null"}
HOSTILE = {
    "deep properties": nested(lambda s: {"properties": {"a": s}, "required": ["a"]}, 2_000, {}),
    "deep items": nested(lambda s: {"items": s}, 5_000, {}),
    "deep not": nested(lambda s: {"not": s}, 5_000, {}),
    "deep anyOf": nested(lambda s: {"anyOf": [s, {"type": "null"}]}, 500, {"type": "integer"}),
    "deep const": {"const": nested(lambda v: [v], 5_000, 1)},
    "long chain of references": chain(2_000, lambda n: n, {"type": "integer"}),
    "required chain": chain(900, lambda n: {**OBJECT, "properties": {"n": n}, "required": ["n"]}, NULL),
    "exponential allOf": doubling(60, "allOf"),
    "exponential anyOf": doubling(60, "anyOf"),
    "exponential oneOf": doubling(30, "oneOf"),
    "product of anyOf": choices(14),
    "product of oneOf": choices(9, "oneOf"),
    "negated product": {"not": choices(12)},
    "many alternatives": {"oneOf": [{**OBJECT, "required": [f"p{i}"]} for i in range(60)]},
    "huge bounds": {"items": {"type": "string", "maxLength": 10**9}, "minItems": 10**6, "maxItems": 10**9},
    "huge count of properties": {**OBJECT, "maxProperties": 10**9, "minProperties": 10**9},
    "huge contains": {"type": "array", "contains": {"type": "integer"}, "minContains": 10**6},
    "many contains": {"type": "array", "allOf": [{"contains": {"const": i}} for i in range(20)]},
    "huge number": {"type": "integer", "minimum": 10**5_000},
    "long bound": {"type": "number", "minimum": 10**300, "maximum": 10**300 + 1},
    "many multiples": {"type": "integer", "allOf": [{"multipleOf": p} for p in (7, 11, 13, 17, 19, 23)]},
    "large enum": {"enum": [f"value {i} " + "x" * 1_000 for i in range(10_000)]},
    "long enum": {"enum": list(range(100_000))},
    "many properties": {"properties": {f"property {i}": {"type": "integer"} for i in range(20_000)}},
    "many patterns": {**OBJECT, "patternProperties": {f"a.*{i}.*b": {"minimum": i} for i in range(40)}},
    "nested counts": {"pattern": "^((a{1,100}){1,100}){1,100}$", "maxLength": 20},
    "large count": {"pattern": "(a|b){0,100000}", "minLength": 3},
    "catastrophic": {"allOf": [{"pattern": "(a|aa)+$"}, {"pattern": "^(a+)+b"}, {"pattern": "(.*a){12}"}]},
    "exponential automaton": {"allOf": [{"pattern": "(a|b)*a(a|b){18}$"}, {"pattern": "^[ab]*$"}]},
    "negated automaton": {"type": "string", "not": {"pattern": "(a|b)*a(a|b){18}$"}},
    "deep groups": {"pattern": "(" * 5_000 + "a" + ")" * 5_000},
    "long pattern": {"pattern": "a" * 3_000_000},
    "many anchors": {"pattern": "(^a|^b)" * 30},
    "wide class": {"pattern": "[" + "".join(chr(c) for c in range(0x100, 0x4000, 2)) + "]+"},
    "long name": {"properties": {"x" * 300_000: {}}},
    "many patterns at once": {
        "allOf": [{"anyOf": [{"pattern": f"{chr(97 + i)}.*{i}"}, {"maxLength": i}]} for i in range(16)]
    },
    "unicode class": {"allOf": [{"pattern": "^\\p{L}+$"}, {"pattern": "^\\P{Lu}+$"}], "maxLength": 20},
}


@pytest.mark.slow  # tracing memory takes several times as long as the work
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_cost_little(name):
    """Work is bounded by counts, and a runaway meets the time limit of tests."""
    assert peak_bytes(lambda: compile_schema(HOSTILE[name])) < 50_000_000


@pytest.mark.parametrize(
    ("limit", "schema"),
    [
        ("schemas", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("depth", {"items": {"items": {"items": {"items": {"items": {"items": {}}}}}}}),
        ("values", {"enum": [1, 2, 3]}),
        ("text", {"enum": ["a long text"]}),
        ("branches", {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        ("unfolded", {"allOf": [{"minimum": 1}, {"maximum": 2}, {"type": "integer"}]}),
        ("regex_states", {"type": "number", "multipleOf": 8.3}),  # its automaton is not cached yet
        ("regex_work", {"allOf": [{"pattern": "abc"}, {"pattern": "def"}]}),
        ("rules", {"type": "object"}),
        ("grammar", {"type": "object"}),
    ],
)
def test_each_limit_is_named(limit, schema):
    with pytest.raises(SchemaTooLarge) as caught:
        compile_schema(schema, Options(limits=Limits(**{limit: 2})))
    assert caught.value.limit == limit


REFUSED_BY = {
    **dict.fromkeys(["deep properties", "deep items", "deep not", "deep anyOf", "deep const"], "depth"),
    **dict.fromkeys(["large enum", "long enum", "many properties"], "values"),
    **dict.fromkeys(["long pattern", "long name"], "text"),
    **dict.fromkeys(["product of anyOf", "product of oneOf", "many patterns at once"], "branches"),
    "exponential oneOf": "unfolded",
    "huge contains": "rules",
    **dict.fromkeys(["nested counts", "many patterns"], "regex_work"),
    **dict.fromkeys(["many multiples", "negated automaton"], "regex_states"),
}  # limits that refuse these; the others are compiled, or have an unsupported keyword
SMALL = Options(
    limits=Limits(**{name: limit // 10 for name, limit in msgspec.structs.asdict(Limits()).items()})
)


def outcome(schema, options=None):
    try:
        return compile_schema(schema, options), None
    except SchemaTooLarge as error:
        return str(error), error.limit
    except InvalidRequest as error:
        return str(error), None


def names_with_slow(*slow):
    """Parametrise by all names. The slow ones take over a second each, and meet limits that others meet."""
    marks = [pytest.mark.slow]
    names = [pytest.param(name, marks=marks) if name in slow else name for name in HOSTILE]
    return pytest.mark.parametrize("name", names)


@names_with_slow("exponential automaton", "nested counts", "catastrophic")
def test_hostile_schemas_are_compiled_or_refused_by_counting(name):
    _, limit = outcome(HOSTILE[name])
    assert limit == REFUSED_BY.get(name)


@names_with_slow("catastrophic", "exponential automaton", "large count", "many multiples")
def test_hostile_schemas_have_the_same_outcome_every_time(name):
    """No cache lets a schema pass the second time. Lower limits are met sooner."""
    assert outcome(HOSTILE[name], SMALL) == outcome(HOSTILE[name], SMALL)


def test_an_intersection_pays_for_all_its_parts():
    """A step of sixteen patterns that hold at once counts as sixteen steps."""
    patterns = [f"{chr(97 + i)}.*{chr(97 + i)}" for i in range(16)]
    language = both(*(search_language(pattern, Limits()) for pattern in patterns))
    with pytest.raises(SchemaTooLarge) as caught:
        build_automaton(language, Budget(Limits()))
    assert caught.value.limit in ("regex_work", "regex_states")


def test_a_class_of_too_many_characters_is_refused():
    with pytest.raises(UnsupportedSchema, match="in one class"):
        compile_schema(HOSTILE["wide class"])


def test_classes_of_unicode_are_complete():
    """The compiler reads only some planes; this test reads all of them."""
    members = defaultdict(list)
    for code in range(sys.maxunicode + 1):
        members[unicodedata.category(chr(code))].append(code)
    del members["Cs"]
    for category in ("Lu", "Lo", "Mn", "Cf", "Cn", "Co", "Cs"):
        ranges = unicode_property(category).ranges
        inside = [code for low, high in ranges for code in range(low, high + 1)]
        assert inside == members[category]


def test_a_schema_deep_within_its_limits_is_compiled():
    schema = nested(lambda s: {"type": "object", "properties": {"a": s}}, 40, {"type": "integer"})
    assert compile_schema(schema)


def test_hostile_regex():
    for pattern in ("(a{1,1000}){1,1000}", "(" * 3_000, "a{100001}", "[" * 100_000):
        with contextlib.suppress(InvalidRequest):
            assert text_length(regex_rules(pattern)) < 60_000


def test_errors_stay_short_however_long_the_schema():
    for schema in ({"pattern": "(?=" + "a" * 10_000}, {"type": "x" * 10_000}, {"$ref": "#" + "y" * 10_000}):
        with pytest.raises(InvalidRequest) as caught:
            compile_schema(schema)
        assert len(str(caught.value)) < 400


def test_the_minimal_automaton_has_one_state_for_each_rest():
    """Words of four letters with two endings: their middle letters differ, and what may follow does not."""
    words = any_of([a + b + c + end for a in "abcd" for b in "xy" for c in "xy" for end in ("st", "sts")])
    automaton = build_automaton(words, Budget(Limits()))
    assert (len(automaton.edges), len(automaton.accepting)) == (7, 2)
    counted = build_automaton(repeat(Chars(DIGITS), 3, 9), Budget(Limits()))
    assert (len(counted.edges), len(counted.accepting)) == (10, 7)
    assert build_automaton(ALL, Budget(Limits())).accepting == {0}
    assert not build_automaton(NOTHING, Budget(Limits())).accepting


def test_names_of_two_alternatives_are_excluded_without_an_automaton():
    """An automaton with a state for each letter of each name took 3 s."""
    names = [f"{a}{b}-{a * 3}-{b * 5}" for a in "abcdefghij" for b in "abcdefghij"]
    closed = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    schema = {"oneOf": [closed, {**closed, "additionalProperties": False}]}
    rules = compile_schema(schema).rules
    work = Work()
    lark = Translation(rules, work=work).text()
    assert len(lark) < 60_000
    assert work.spent < 30_000
    grammar = GrammarCheck(lark)
    assert grammar.check('{"zz":1}').fits  # valid only for the open alternative
    assert not grammar.check('{"aa-aaa-aaaaa":"x"}').fits
    assert not grammar.check('{"aa-aaa-aaaaa":1}').fits


def test_the_share_of_a_schema_counts_its_translation():
    schema = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(300)}})
    grammar = grammar_maker(lambda lark: None)(GrammarOrder(source=GrammarSource.SCHEMA, text=schema))
    assert isinstance(grammar, MadeGrammar)
    compiled = compile_schema(json.loads(schema), Options(additional=Additional.CLOSED))
    work = Work()
    Translation(compiled.rules, work=work)
    assert grammar.share == pytest.approx(compiled.share + work.share)
    assert work.share > compiled.share / 10


def test_a_lexeme_conflicts_with_what_may_follow_one_that_begins_like_it():
    letters = star(Chars(CharSet.chars("ab")))
    string = seq(Text('"'), letters, Text('"'))
    number = repeat(Chars(DIGITS), 1, None)
    lexemes = {"number": number, "twelve": Text("12"), "string": string, "key": seq(string, Text(":"))}
    follow = dict.fromkeys(lexemes, lead_of_char(",") | lead_of_char("]"))
    assert conflicts_among(lexemes, follow, Work()) == set()
    assert conflicts_among(lexemes, {**follow, "twelve": lead_of_char("7")}, Work()) == {"number"}
    assert conflicts_among(lexemes, {**follow, "string": lead_of_char(":")}, Work()) == {"key"}
    assert conflicts_among({"number": number}, {"number": lead_of_char('"')}, Work()) == set()
