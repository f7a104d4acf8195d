"""Lexemes stay whole where what they conflict with is never read at the same place."""

from __future__ import annotations

import pytest

from openai_cpu_server.structured.lark import translation
from tests.structured.making import check_gbnf, gbnf_to_lark
from tests.structured.oracle import check_texts

APART = {
    "after different brackets": (
        'root ::= ("(" [a-z]+ root? ")" | "<" [x] [a-z] root? ">")',
        ["(abc<xq(x)>)", "<xx>"],
        ["<ab>", "<x>", "()", "(a"],
    ),
    "behind a blank that both share": (
        'root ::= ("let" ws name ws "=" ws (block | [0-9]+) | "if" ws test ws block) ";" root?\n'
        'test ::= "x" [a-z] block? "?"\nname ::= [a-z]+ "_"\nws ::= " "*\nblock ::= "{" root "}"',
        ["let ab_ = 12;", "if xy? {let  x_=0;};", "letx_=1;let y_={ifxx{let a_=1;}?{leta_=2;};};"],
        ["if x? {let a_=1;};", "let a = 1;", "if xyz? {let a_=1;};"],
    ),
    "in rules that name one another": (
        'root ::= "[" item ("," item)* "]"\nitem ::= root | "n" [0-9]+ | "p" pair\n'
        "pair ::= [0-9] [0-9] root?",
        ["[n12,[p34,n5]]", "[p12[n3]]"],
        ["[p1]", "[n]", "[p123]"],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_no_lexeme_is_broken_and_without_looking_at_places_the_language_is_the_same(name, monkeypatch):
    text, accepted, rejected = APART[name]
    whole = gbnf_to_lark(text)
    check_texts(check_gbnf(text), accepted, rejected)
    monkeypatch.setattr(translation, "_MOST_TO_CONFIRM", 0)
    assert gbnf_to_lark(text) != whole, "nothing would be broken anyway"
    check_texts(check_gbnf(text), accepted, rejected)


def test_lexemes_that_do_meet_are_still_broken():
    """`xa` may be the name alone, or the mark and a letter: both must be read on."""
    check = check_gbnf('root ::= (name "1" | [x] [a-z] "2") root?\nname ::= [a-z]+')
    check_texts(check, ["xa1", "xa2", "xyz1xb2", "a1"], ["xyz2", "ab2", "x2"])


def test_rules_that_end_together_lead_to_all_that_may_follow_them():
    grammar = 'root ::= "a" x "b" root? | "c" x [0-9]\nx ::= y?\ny ::= [0-9]+ "." | [0-9] [0-9] "!"'
    fitting = ["a12.b", "ab", "c5", "c12!7", "a1.bc9", "c123.4"]
    check_texts(check_gbnf(grammar), fitting, ["a5", "c12", "c12!", "a123!b"])
