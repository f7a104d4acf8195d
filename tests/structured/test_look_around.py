"""Patterns with look-around and word boundaries, compared with Python's `re` on random texts."""

from __future__ import annotations

import json
import random
import re

import pytest

from openai_cpu_server.structured.compiler import regex_rules
from openai_cpu_server.structured.languages.automaton import Deriver
from openai_cpu_server.structured.options import Budget, InvalidPattern, InvalidSchema, Limits
from openai_cpu_server.structured.scalars.regex import full_language, search_language
from tests.structured.making import check_schema
from tests.structured.oracle import check

PATTERNS = [
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


def test_conditions_of_passwords_and_of_names():
    password = r"^(?=.*[A-Z])(?=.*\d)(?=.*[a-z]).{8,}$"
    check({"type": "string", "pattern": password}, ["Abcdefg1", "12345aZ8"], ["abcdefg1", "Abcd1"])
    not_reserved = r"^(?!(?:admin|root)$)[a-z]{2,10}$"
    check({"type": "string", "pattern": not_reserved}, ["adm", "administer", "rooty"], ["admin", "root", "a"])
    schema = {"patternProperties": {r"^(?!x-)\w": {"type": "integer"}}, "additionalProperties": False}
    check({"type": "object", **schema}, [{"ab": 1}, {}], [{"x-a": 1}, {"ab": "s"}])


def test_words_beyond_ascii_have_no_boundaries_as_in_ecmascript():
    grammar = check_schema({"type": "string", "pattern": r"é\bx$"})
    assert grammar.check(json.dumps("éx", ensure_ascii=False)).fits


def test_what_nothing_matches_is_refused():
    with pytest.raises(InvalidSchema, match="nothing matches"):
        regex_rules(r"(?=a)b")


@pytest.mark.parametrize(
    "pattern", ["(" * 40 + r"\ba" + ")?" * 40, r"(?:\ba|\Bb|\b)" * 200, r"(?=" * 45 + "a" + ")" * 45 + "b"]
)
def test_hostile_look_around_is_refused(pattern: str) -> None:
    with pytest.raises((InvalidPattern, InvalidSchema)):
        regex_rules(pattern)
