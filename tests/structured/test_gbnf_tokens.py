"""Control tokens in grammars: `<[302]>` is one token, which no text is."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.structured.gbnf.parser import names_tokens, parse_gbnf
from tests.api.following import Follower
from tests.structured.making import check_gbnf, gbnf_to_lark

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
def test_a_token_is_met_where_it_is_named_and_nowhere_else(text: str, fits: bool) -> None:
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


def test_whether_a_grammar_names_tokens_is_known() -> None:
    assert names_tokens(parse_gbnf("root ::= a\na ::= (<[5]>)*"))
    assert not names_tokens(parse_gbnf('root ::= "<[5]>" # <[5]>'))
