"""GBNF as llama.cpp reads it: constructs, errors with their places, control tokens, whole lexemes."""

from __future__ import annotations

import pytest
from llguidance import gbnf_to_lark as llguidance_gbnf

from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.gbnf.parser import (
    MOST_GBNF_CHARACTERS,
    MOST_SYMBOLS,
    names_tokens,
    parse_gbnf,
)
from openai_cpu_server.structured.lark import translation
from openai_cpu_server.structured.options import InvalidGrammar
from tests.api.following import Follower
from tests.structured.making import check_gbnf, gbnf_to_lark
from tests.structured.oracle import check_texts

GRAMMARS = {
    "escapes": (r'root ::= "\n\r\t\\\"\[\]\-\x41\u00e9\U0001F600"', ['\n\r\t\\"[]-Aé😀'], [""]),
    "class": (r"root ::= [a-c_\x30-\x32\]]", list("abc_012]"), ["d", "3", "", "ab", "-"]),
    "dash first or last": ("root ::= [-a] [a-]", ["--", "aa", "-a"], ["b-", "a"]),
    "escaped dash": (r"root ::= [a\-c]", ["a", "-", "c"], ["b"]),
    "negated class": ("root ::= [^a\\n]", ["b", "é", "😀", "\t"], ["a", "\n", "", "bb"]),
    "groups": ('root ::= ("a" | "b" ("c" | "d"))', ["a", "bc", "bd"], ["b", "c"]),
    "repetitions": ('root ::= "a"* "b"+ "c"?', ["b", "aab", "bbc"], ["", "ac", "bcc"]),
    "counts": ('root ::= "a"{2} "b"{1,} "c"{,2} "d"{ 1 , 2 }', ["aabd", "aabbbccdd"],
         ["abd", "aad", "aabcccd", "aabddd"]),
    "counted twice": ('root ::= ("x"{2})*', ["", "xx", "xxxx"], ["x", "xxx"]),
    "operators one after another": ('root ::= "x"{2}*', ["", "xx", "xxxx"], ["x"]),
    "names": ('root ::= a-1 B_2\na-1 ::= "x"\nB_2 ::= "y"', ["xy"], ["x"]),
    "names that look alike": (
        'root ::= aB "-" a-b "-" A-B\naB ::= "1" root?\na-b ::= "2" root?\nA-B ::= "3" root?',
        ["1-2-3"], ["1-1-1", "2-2-2"]),
    "comments": ('# first\nroot ::= "a" # here\n  # there\n| "b"'.replace("\n| ", " | "), ["a"], ["b"]),
    "continued lines": ('root ::=\n  "a" |\n  "b" (\n "c"\n | "d" )\nx ::= "y"\n', ["a", "bc"], ["b"]),
    "carriage returns": ('root ::= a\r\na ::= "b"\r\n', ["b"], ["a"]),
    "right recursion": ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()"]),
    "undone recursion": ('root ::= "a" | never\nnever ::= "b" never', ["a"], ["b", "bb"]),
    "greed would take the next symbol": ("root ::= [a-z]+ root | [a-z] [0-9]", ["a1", "abc1"], ["abc", "1"]),
    "literals and classes": ('root ::= "ab" r | "abc"\nr ::= "c" "d" r?', ["abc", "abcd"], ["ab", "abd"]),
    "characters that share bytes": ("root ::= [é]* r\nr ::= [è] r?", ["è", "éèè"], ["é"]),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAMMARS)
def test_each_construct_has_its_language(name):
    text, accepted, rejected = GRAMMARS[name]
    check_texts(check_gbnf(text), accepted, rejected)


def test_the_reader_of_llguidance_refuses_some_grammars_and_reads_others_wrongly():
    """This is why GBNF has a reader of our own. When it fails, see docs/measurements.md."""
    with pytest.raises(llguidance_gbnf.GbnfToLarkError):
        llguidance_gbnf.gbnf_to_lark(GRAMMARS["counts"][0])
    check = GrammarCheck(llguidance_gbnf.gbnf_to_lark(GRAMMARS["literals and classes"][0]))
    assert not check.check("abcd").fits


WRONG = [
    ("", 1, 1, "there is no rule 'root'"),
    ('a ::= "b"', 1, 10, "there is no rule 'root'"),
    ("root ::= a\n", 1, 10, "there is no rule 'a'"),
    ('root ::= "a"\nb ::=\n  c', 3, 3, "there is no rule 'c'"),
    ('root ::= "a" "b', 1, 14, "without its closing '\"'"),
    ("root ::= [a-", 1, 10, "without its closing ']'"),
    ('root ::= "a"{2', 1, 13, "without its closing '}'"),
    ('root ::= ("a"\n', 2, 1, "expected a literal, a class, a rule's name, '(', '|' or ')'"),
    ('root ::= "a" )', 1, 14, "not ')'"),
    ('root "a"', 1, 6, "expected '::='"),
    ('root ::= "a"\n  | "b"', 2, 3, "expected a rule's name, not '|'"),
    ('root ::= x ::= "a"', 1, 12, "not '::='"),
    ("root ::= 'a'", 1, 10, "begins no symbol"),
    ("root ::= *", 1, 10, "nothing stands before '*'"),
    ('root ::= "a" | +', 1, 16, "nothing stands before '+'"),
    ('root ::= "a"{,}', 1, 13, "expected {m}, {m,}, {,n} or {m,n}"),
    ('root ::= "a"{x}', 1, 13, "expected {m}, {m,}, {,n} or {m,n}"),
    ('root ::= "a"{3,2}', 1, 13, "at least 3 and at most 2 times"),
    ('root ::= "a"{99999999999}', 1, 13, "more than 1000000000 repetitions"),
    (r'root ::= "ab\q"', 1, 13, "unknown escape"),
    (r'root ::= "\x4"', 1, 11, "expects 2 hexadecimal digits"),
    (r"root ::= [\u12]", 1, 11, "expects 4 hexadecimal digits"),
    (r'root ::= "\U00110000"', 1, 11, "there is no character 0x110000"),
    (r'root ::= "\ud800"', 1, 11, "there is no character 0xd800"),
    ("root ::= []", 1, 10, "names none"),
    ("root ::= [a-cz-x]", 1, 14, "whose end lies before its beginning"),
    ('root ::= "a"\nroot ::= "b"', 2, 1, "is defined already"),
    ("root ::= <think> .*", 1, 10, "tokens"),
    ("root ::= <[x]>", 1, 10, "cannot be named"),
    ("root ::= <[1234567890]>", 1, 10, "cannot be named"),
    ("root ::= !<[7]>", 1, 10, "tokens"),
    ('root ::= root "a" | "b"', 1, 1, "left recursion: root -> root"),
    ('root ::= "x" a\na ::= "y"? b\nb ::= ("z" | a) "w"', 2, 1, "left recursion: a -> b -> a"),
    ('root ::= ("a" | (("b" | (((root))))))', 1, 1, "left recursion"),
    ("root ::= " + "(" * 502, 1, 510, "more than 500 nested groups"),
    ("#" * (MOST_GBNF_CHARACTERS + 1), 1, MOST_GBNF_CHARACTERS + 1, "characters"),
    ("root ::= " + "." * (MOST_SYMBOLS + 1), 1, MOST_SYMBOLS + 8, "symbols"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG)
def test_errors_name_their_place(text, line, column, message):
    with pytest.raises(InvalidGrammar) as caught:
        parse_gbnf(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert message in caught.value.reason


@pytest.mark.parametrize("depth", [35, 200, 500])
def test_deep_groups_are_read(depth):
    optional = "(" * depth + '"a"' + ' "b")?' * depth
    check = check_gbnf(f"root ::= {optional}")
    check_texts(check, ["", "a" + "b" * depth], ["a" + "b" * (depth + 1)])


def test_rules_of_characters_alone_stay_whole_where_possible():
    lark = gbnf_to_lark(
        'root ::= "[" item ("," item)* "]" | root2\nroot2 ::= "{" root "}"\nitem ::= [a-z]+ "!"?'
    )
    assert r"/[a-z]+(?:\x{21})?/" in lark


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
def test_lexemes_stay_whole_and_breaking_them_keeps_the_language(name, monkeypatch):
    text, accepted, rejected = APART[name]
    whole = gbnf_to_lark(text)
    check_texts(check_gbnf(text), accepted, rejected)
    monkeypatch.setattr(translation, "_MOST_TO_CONFIRM", 0)
    assert gbnf_to_lark(text) != whole, "else no lexeme of this grammar is at stake"
    check_texts(check_gbnf(text), accepted, rejected)


def test_lexemes_that_do_meet_are_still_broken():
    """`xa` may be the name alone, or the mark and a letter. Both readings must continue."""
    check = check_gbnf('root ::= (name "1" | [x] [a-z] "2") root?\nname ::= [a-z]+')
    check_texts(check, ["xa1", "xa2", "xyz1xb2", "a1"], ["xyz2", "ab2", "x2"])


def test_rules_that_end_together_lead_to_all_that_may_follow_them():
    grammar = 'root ::= "a" x "b" root? | "c" x [0-9]\nx ::= y?\ny ::= [0-9]+ "." | [0-9] [0-9] "!"'
    fitting = ["a12.b", "ab", "c5", "c12!7", "a1.bc9", "c123.4"]
    check_texts(check_gbnf(grammar), fitting, ["a5", "c12", "c12!", "a123!b"])


CALL_OR_TEXT = 'root ::= [^\\x00]* | <[302]> call ("," call)* <[303]>\ncall ::= "f" [0-9]+ | "g" <[303]>?\n'
FOLLOWER = Follower()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("any text", True),
        ("<|tool_call|>f1,g,f23[TOOL_CALLS]", True),
        ("<|tool_call|>g[TOOL_CALLS][TOOL_CALLS]", True),
        ("<|tool_call|>f1", False),
        ("text <|tool_call|>", False),
        ("f1<|tool_call|>", False),
        ("<|tool_call|>[TOOL_CALLS]", False),
    ],
)
def test_a_token_is_accepted_only_where_it_is_named(text: str, fits: bool) -> None:
    assert FOLLOWER.accepts(Constraint(grammar=gbnf_to_lark(CALL_OR_TEXT)), text) is fits


def test_the_name_spelt_in_letters_is_text() -> None:
    grammar = Constraint(grammar=gbnf_to_lark('root ::= "a" <[302]>'))
    assert FOLLOWER.accepts(grammar, "a<|tool_call|>")
    other = Constraint(grammar=gbnf_to_lark('root ::= "a" <[410]>'))
    assert not Follower(("<other>",)).accepts(other, "a<|tool_call|>")


def test_numbers_can_be_those_of_another_vocabulary() -> None:
    assert "<[7]>" in gbnf_to_lark('root ::= "a" <[302]>', lambda number: 7)


def test_a_check_needs_no_vocabulary() -> None:
    check = check_gbnf('root ::= "a" | <[128010]> "b" | <[5]> <[6]> "c"')
    assert check.check("a").fits
    assert not check.check("b").fits


def test_grammars_that_name_tokens_are_recognised() -> None:
    assert names_tokens(parse_gbnf("root ::= a\na ::= (<[5]>)*"))
    assert not names_tokens(parse_gbnf('root ::= "<[5]>" # <[5]>'))
