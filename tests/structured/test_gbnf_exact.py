"""The Lark text has exactly the language of the GBNF text: against a matcher that tries everything."""

from __future__ import annotations

import itertools

from hypothesis import assume, given, settings

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.errors import InvalidGrammar
from openai_cpu_server.structured.gbnf import gbnf_to_lark
from tests.structured.gbnf_reference import LETTERS, Matcher, grammars, printed

WORDS = ["".join(w) for n in range(5) for w in itertools.product(LETTERS[:3] + LETTERS[4], repeat=n)]
WORDS += ["è", "èé", "xè", "éèx", "xyxyxy", "yxéyx", "x\nx\nx", "éééééé", "xxxxxxx"]


REFUSED = ("left recursion", "too large, or too ambiguous")
"""How the reasons begin for which a grammar is not translated: then there is nothing to compare."""


def is_refused(text):
    try:
        gbnf_to_lark(text)
    except InvalidGrammar as error:
        return error.reason.startswith(REFUSED)
    return False


@settings(max_examples=100, deadline=None)
@given(grammars())
def test_random_grammars(grammar):
    text = printed(grammar)
    assume(not is_refused(text))
    check, matcher = GrammarCheck(text), Matcher(grammar)
    wrong = [w for w in WORDS if check.check(w).fits != matcher.matches(w)]
    assert not wrong, gbnf_to_lark(text)
