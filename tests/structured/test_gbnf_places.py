"""Lexemes stay whole where what they conflict with is never read at the same place."""

from __future__ import annotations

import pytest

from openai_cpu_server.structured.lark import translation
from tests.structured.making import check_gbnf, gbnf_to_lark

APART = {
    "after different brackets": 'root ::= ("(" [a-z]+ root? ")" | "<" [x] [a-z] root? ">")',
    "behind a blank that both share": (
        'root ::= ("let" ws name ws "=" ws (block | [0-9]+) | "if" ws test ws block) ";" root?\n'
        'test ::= "x" [a-z] block? "?"\nname ::= [a-z]+ "_"\nws ::= " "*\nblock ::= "{" root "}"'
    ),
    "in rules that name one another": (
        'root ::= "[" item ("," item)* "]"\nitem ::= root | "n" [0-9]+ | "p" pair\npair ::= [0-9] [0-9] root?'
    ),
}
SENTENCES = {
    "after different brackets": (["(abc<xq(x)>)", "<xx>"], ["<ab>", "<x>", "()", "(a"]),
    "behind a blank that both share": (
        ["let ab_ = 12;", "if xy? {let  x_=0;};", "letx_=1;let y_={ifxx{let a_=1;}?{leta_=2;};};"],
        ["if x? {let a_=1;};", "let a = 1;", "if xyz? {let a_=1;};"],
    ),
    "in rules that name one another": (["[n12,[p34,n5]]", "[p12[n3]]"], ["[p1]", "[n]", "[p123]"]),
}


@pytest.mark.parametrize("name", APART)
def test_no_lexeme_is_broken(name, monkeypatch):
    whole = gbnf_to_lark(APART[name])
    check = check_gbnf(APART[name])
    accepted, rejected = SENTENCES[name]
    assert all(check.check(text).fits for text in accepted)
    assert not any(check.check(text).fits for text in rejected)
    monkeypatch.setattr(translation, "_MOST_TO_CONFIRM", 0)
    assert gbnf_to_lark(APART[name]) != whole, "nothing would be broken anyway"


@pytest.mark.parametrize("name", APART)
def test_without_looking_at_places_the_language_is_the_same(name, monkeypatch):
    monkeypatch.setattr(translation, "_MOST_TO_CONFIRM", 0)
    check = check_gbnf(APART[name])
    accepted, rejected = SENTENCES[name]
    assert all(check.check(text).fits for text in accepted)
    assert not any(check.check(text).fits for text in rejected)


def test_lexemes_that_do_meet_are_still_broken():
    """`xa` may be the name alone, or the mark and a letter: both must be read on."""
    check = check_gbnf('root ::= (name "1" | [x] [a-z] "2") root?\nname ::= [a-z]+')
    for text in ("xa1", "xa2", "xyz1xb2", "a1"):
        assert check.check(text).fits
    for text in ("xyz2", "ab2", "x2"):
        assert not check.check(text).fits


def test_rules_that_end_together_lead_to_all_that_may_follow_them():
    grammar = 'root ::= "a" x "b" root? | "c" x [0-9]\nx ::= y?\ny ::= [0-9]+ "." | [0-9] [0-9] "!"'
    check = check_gbnf(grammar)
    for text in ("a12.b", "ab", "c5", "c12!7", "a1.bc9", "c123.4"):
        assert check.check(text).fits
    for text in ("a5", "c12", "c12!", "a123!b"):
        assert not check.check(text).fits
