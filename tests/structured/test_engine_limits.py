"""Limits of llguidance: counted before it is called, and without its own words in errors."""

import itertools

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    Chars,
    Ref,
    Text,
    alt,
    any_of,
    both,
    negate,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import SchemaTooLarge
from tests.structured.making import check_rules
from tests.structured.oracle import check_texts

pytestmark = pytest.mark.thorough
NATIVE = ("panic", "backtrace", ".rs", "lark", "llguidance", "assert")


@pytest.mark.parametrize("length", [20, 30, 80])
def test_names_that_are_excluded_letter_by_letter_do_not_nest_too_deep(length):
    letters = Chars(CharSet.of((ord("a"), ord("z"))))
    name = "abcdefghij" * (length // 10)
    rules = {  # more letters may follow the name, so it is not a lexeme
        "root": seq(both(star(letters), negate(any_of([name, name[:-1] + "z"]))), Ref("rest")),
        "rest": alt(seq(letters, Ref("rest")), Text(";")),
    }
    check_texts(check_rules(rules), [";", f"{name[:-1]};", f"{name};"], [name, f"{name};;"])


def many_repetitions(count):
    words = ["".join(word) for word in itertools.product("abcdefghij", repeat=2)]
    names = [seq(Text(words[i % 100]), Text(words[i // 100])) for i in range(count)]
    rules = {f"r{i}": repeat(seq(name, Ref("value")), 3, 997) for i, name in enumerate(names)}
    ways = [seq(name, Ref(f"r{i}")) for i, name in enumerate(names)]
    return {"root": alt(*ways), "value": alt(Text("]"), seq(Text("["), Ref("root"))), **rules}


def test_symbols_are_counted_before_the_native_code_panics():
    assert check_rules(many_repetitions(200))
    with pytest.raises(SchemaTooLarge, match="65000 symbols"):
        Translation(many_repetitions(3_000))


@pytest.mark.parametrize("lark", ["start: " + "(" * 40 + '"a"' + ")" * 40, "start: x", "%%%"])
def test_messages_of_the_native_code_are_not_shown(lark):
    with pytest.raises(InvalidRequest) as caught:
        GrammarCheck(lark)
    assert not [word for word in NATIVE if word in str(caught.value)]
