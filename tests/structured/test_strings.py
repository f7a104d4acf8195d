"""minLength, maxLength, pattern, format; look-around compared with Python's `re` on random texts."""

from __future__ import annotations

import json
import random
import re

import pytest

from openai_cpu_server.structured.compiler import compile_schema, regex_rules
from openai_cpu_server.structured.languages.automaton import Deriver
from openai_cpu_server.structured.options import (
    Budget,
    InvalidPattern,
    InvalidSchema,
    Limits,
    UnsupportedSchema,
)
from openai_cpu_server.structured.scalars.regex import full_language, search_language
from tests.structured.making import check_schema
from tests.structured.oracle import check_ours, check_texts, table

test_ours = table({
    "lengths count characters": [
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "éé", "😀😀😀", '\n"'],
         ["a", "", "abcd"]),
        ({"type": "string", "minLength": 2}, ["ab", "x" * 50], ["", "a"]),
        ({"type": "string", "maxLength": 0}, [""], ["a"])],
    "pattern applies to strings only": [({"pattern": "^a$"}, ["a", 1, None], ["b"])],
    "pattern within lengths": [
        ({"type": "string", "pattern": "^[a-z][a-z0-9-]*$", "maxLength": 4, "minLength": 2}, ["ab", "a-1z"],
         ["a", "abcde", "1a"]),
        ({"type": "string", "pattern": "b", "maxLength": 3}, ["b", "abc"], ["", "abcd", "aaa"]),
        ({"type": "string", "pattern": "^a*b*$", "minLength": 3, "maxLength": 5}, ["aab", "bbbbb"],
         ["ab", "aaabbb", "ba"])],
    "a long bound on several open parts is never exceeded": [
        ({"type": "string", "pattern": "^[a-z]+:[a-z]+$", "maxLength": 60},
         ["a:b", "a" * 20 + ":" + "b" * 10, "x" * 40 + ":y"], ["a" * 40 + ":" + "b" * 40, "ab"])],
    "a bound that no text comes near is kept as far as counts go": [
        ({"type": "string", "maxLength": 2**31 - 1, "minLength": 1}, ["a"], [""]),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2**31 - 1}, [[], [1, 2]], [["a"]])],
    "formats of bounded length": [
        ({"format": "uri", "minLength": 6}, ["http:a", "https://a.b/c"], ["a:bcd", "http:"]),
        ({"format": "uri", "minLength": 1, "maxLength": 2048},
         ["https://a.b/c%20d?e=f#g", "urn:isbn:0-395", "a:b", "http://a.b:80/"],
         ["no uri", "http://a/" + "x" * 2040, "//a"]),
        ({"format": "uri", "minLength": 9, "maxLength": 20}, ["http://a.b/c", "mailto:ab@c.de"],
         ["http://a", "a:" + "b" * 19]),
        ({"type": "string", "format": "email", "minLength": 6, "maxLength": 100},
         ["aa@b.cd", "a@bc.de", "john.smith@mail.example.org"], ["a@b.c", "a@" + "b" * 30 + ".c" * 40]),
        ({"type": "string", "format": "uri-reference", "minLength": 1, "maxLength": 255},
         ["a", "/a:b?c#d", "http://a.b", "a/b"], ["", "/" + "a" * 255, "a b"]),
        ({"format": "hostname", "minLength": 4}, ["ab.c", "abcd"], ["abc", "a.b"]),
        ({"format": "json-pointer", "minLength": 1, "maxLength": 255}, ["/", "/a/b"], ["", "/" + "a" * 255])],
    "the last character of ascii may be escaped": [
        ({"type": "string", "pattern": "^[^a]$"}, ["\x7f", "b"], ["a"]),
        ({"type": "string", "maxLength": 1}, ["\x7f"], ["\x7f\x7f"])],
    "several patterns hold at once": [
        ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}, {"not": {"pattern": "c"}}]},
         ["ab", "bxa"], ["a", "b", "abc"])],
    "unknown formats are annotations": [({"type": "string", "format": "phone"}, ["anything", ""], [1])],
    "format applies to strings only": [({"format": "date"}, [1, None, "2024-01-01"], ["x"])],
    "a hostname never gets longer than 253": [
        ({"format": "hostname"}, [".".join(["a" * 63] * 3)],
         [".".join(["a" * 63] * 4), ".".join(["a"] * 200)])],
    "formats and patterns hold at once": [
        ({"type": "string", "format": "date", "pattern": "^2024-"}, ["2024-02-29"],
         ["2023-01-01", "2024-02-30"]),
        ({"type": "string", "format": "uri", "pattern": r"^https://[a-z.]+/[\w/]*$", "maxLength": 64},
         ["https://a.b/c/d"], ["http://a.b/", "https://a.b"])],
}, check_ours)  # fmt: skip


def test_a_character_may_be_escaped_and_counts_once():
    one, letters = {"type": "string", "maxLength": 1}, {"type": "string", "pattern": "^[à-ü]+$"}
    check_texts(check_schema(one), [r'"\u00e9"', r'"\ud83d\ude00"'], [r'"\u00e9\u00e9"'])
    check_texts(check_schema(letters), [r'"\u00e9é"'], [r'"\u0041"'])


@pytest.mark.parametrize(
    ("pattern", "accepted", "rejected"),
    [
        ("^(?<year>\\d{4})-\\d{2}$", ["2024-01"], ["24-01", "2024-1"]),
        ("^.$", ["a", "é", '"'], ["\n", "ab", ""]),
        ("^\\x41\\u00e9\\u{1F600}\\t$", ["Aé😀\t"], ["Aé😀"]),
        ("^[\\]\\[\\\\^]$", ["]", "[", "\\", "^"], ["a"]),
        ("^\\/\\.\\*$", ["/.*"], ["/a*"]),
        ("a\\z", ["a", "ba"], ["ab", "az"]),
        ("^\\p{Lu}\\p{L}*$", ["Éa", "A"], ["aé", "1"]),
        ("^\\PC*$", ["aé 1", ""], ["a\u200b", "\n"]),
        ("^\\pL+$", ["aé"], ["1", ""]),
    ],
)
def test_pattern(pattern, accepted, rejected):
    check_ours({"type": "string", "pattern": pattern}, accepted, rejected)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?<=ab)c", "look-behind at more than one character"),
        ("(?:(?=a).)+b", "look-around inside an endless repetition"),
        ("(?=a)*", "cannot be repeated"),
        ("(a)\\1", "back references are not regular: repeat the group's text"),
        ("(?i)a", "write \\[Aa\\] instead"),
        ("a(b", "missing"),
        ("a)b", "unmatched"),
        ("*a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("[a", "missing"),
        ("[b-a]", "out of order"),
        ("a{3,2}", "out of order"),
        ("a\\", "backslash"),
        ("\\ud800", "no such character"),
        ("\\ud800\\u0041", "half of a pair"),
        ("\\p{Greek}", "general categories"),
        ("a{1,99999999}", "counts over"),
        ("(^a)*b", "repetition"),
    ],
)
def test_patterns_beyond_a_grammar_are_refused_with_their_place(pattern, reason):
    with pytest.raises(UnsupportedSchema, match=reason) as caught:
        compile_schema({"properties": {"x": {"pattern": pattern}}})
    assert (caught.value.path, caught.value.keyword) == ("/properties/x", "pattern")


FORMATS = {
    "date": (["2024-02-29", "1999-12-31", "2000-02-29"],
         ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-01-01"]),
    "time": (["10:20:30Z", "23:59:59.123+01:30"], ["10:20:30", "24:00:00Z", "10:60:00Z", "10:20Z"]),
    "date-time": (
        ["2024-02-29T10:20:30Z", "2024-01-01T00:00:00.5-08:00", "0001-01-01T00:00:00Z",
         "9999-12-31T23:59:59.999999999+23:59", "2000-02-29T00:00:00-00:00"],
        ["2024-02-30T10:20:30Z", "2024-01-01", "2024-01-01 00:00:00Z", "0000-01-01T00:00:00Z",
         "0000-02-29T00:00:00Z", "1900-02-29T00:00:00Z", "2024-01-01T23:59:60Z", "2024-01-01T24:00:00Z",
         "2024-01-01T00:00:00.1234567890Z", "2024-01-01T00:00:00+24:00", "2024-01-01t00:00:00Z",
         "2024-01-01T00:00:00z"]),
    "duration": (["P1Y2M3DT4H5M6S", "PT5M", "P2W", "P1D"], ["P", "PT", "1D", "P1S", "P1Y2W", "PT1D"]),
    "email": (["a@b.example", "first.last+tag@host"], ["a", "a@", "@b", "a..b@c", "a b@c"]),
    "hostname": (["example.org", "a", "a-b.c1"], ["-a", "a-", "a..b", "a_b", "a" * 64, ""]),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "::ffff:1.2.3.4"],
         ["1:2:3", ":::", "1::2::3", "12345::", "1:2:3:4:5:6:7:8:9"]),
    "uri": (["https://a.b/c?d=e#f", "urn:isbn:1", "mailto:a@b", "http://[::1]:80/"],
         ["/a/b", "a", "http://a b", "://a", ""]),
    "uri-reference": (["/a/b", "a?b", "#c", "", "https://a.b", "//h/p"], ["a b", "\\\\a"]),
    "uri-template": (
        ["", "http://a.com/{id}", "/{+path}/here{?q*,lang:3}", "{term:1}/{a.b}", "a%20\u00e9"],
        ["http://a.com/{", "}", "{}", "{a", "{a,}", "{a:0}", "{a{b}}", "{a b}", "{=a}", "a b", "%2", "<a>"]),
    "uuid": (["123e4567-e89b-12d3-a456-426614174000"],
         ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"]),
    "json-pointer": (["", "/a/b~0c~1d", "/0/é"], ["a", "/a~", "/~2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_format(name):
    accepted, rejected = FORMATS[name]
    check_ours({"type": "string", "format": name}, accepted, rejected)


PATTERNS = [
    *(
        "",
        "a",
        "^a",
        "a$",
        "^a$",
        "^$",
        "^a|b$",
        "(^a|^b)1$",
        r"\Aab\Z",
        "^a{,2}$",
        "^a{3}b{2,}1?$",
        "^(a|b)*?1+?$",
    ),
    *("^(?:ab|1_)+$", r"^[a_\-1]{2,3}$", "^[^0-9]*$", r"^\w+\s\S$", r"^\D\W$", "^(([0-9]|[a-b]){2}){0,32}$"),
    *(r"\bab\b", r"^\w+\b-", r"a\B1", r"\b", r"(\ba){1,3}", r"(a\b| )?1", r"(\w+ ?)+\b", r"\w+\b \b\w+"),
    *(r"(?!)", r"(?=)a", r"^(?=.*a)(?=.*1).{2,5}$", r"^(?!ab).*$", r"^((?!ab).)*$"),
    *(r"^(?:(?!ab|b1)[ab1]){2,}$", r"^(?!.*--)[a-]+$", r"(?=a(?!b))\w\w", r"(?=.*\bab\b)a"),
    *(r"^(?!(?=a).*1$)\w+$", r"^(?!\s*$).+", r"(?!^)a", r"a(?=$)"),
    *(r"(?<!a)b", r"(?<=a)b\b", r"(?<=[^b])1(?!\d)", r"(?<=a|b)1"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_language_is_that_of_re(pattern: str) -> None:
    rng, deriver = random.Random(pattern), Deriver(Budget(Limits(regex_work=10**9)))
    found, whole = search_language(pattern, Limits()), full_language(pattern, Limits())
    for _ in range(400):
        text = "".join(rng.choice("ab1 _-") for _ in range(rng.randint(0, 7)))
        assert deriver.matches(found, text) == bool(re.search(pattern, text, re.ASCII)), text
        assert deriver.matches(whole, text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


def test_words_beyond_ascii_have_no_boundaries_as_in_ecmascript():
    grammar = check_schema({"type": "string", "pattern": r"é\bx$"})
    assert grammar.check(json.dumps("éx", ensure_ascii=False)).fits


def test_a_pattern_without_matches_is_refused():
    with pytest.raises(InvalidSchema, match="nothing matches"):
        regex_rules(r"(?=a)b")


@pytest.mark.parametrize(
    "pattern", ["(" * 40 + r"\ba" + ")?" * 40, r"(?:\ba|\Bb|\b)" * 200, r"(?=" * 45 + "a" + ")" * 45 + "b"]
)
def test_hostile_look_around_is_refused(pattern: str) -> None:
    with pytest.raises((InvalidPattern, InvalidSchema)):
        regex_rules(pattern)
