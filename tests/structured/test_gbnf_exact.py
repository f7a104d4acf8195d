"""The Lark text has exactly the language of the GBNF text: against a matcher that tries everything."""

from __future__ import annotations

import itertools

from hypothesis import assume, given, settings

from openai_cpu_server.structured.options import InvalidGrammar
from tests.structured.gbnf_reference import LETTERS, Matcher, grammars, printed
from tests.structured.making import check_gbnf, gbnf_to_lark

_SOME = LETTERS[:3] + LETTERS[4]
WORDS = ["".join(w) for n in range(4) for w in itertools.product(_SOME, repeat=n)]
WORDS += ["".join(w) for w in itertools.islice(itertools.product(_SOME, repeat=4), 0, None, 3)]
WORDS += ["è", "èé", "xè", "éèx", "xyxyxy", "yxéyx", "x\nx\nx", "éééééé", "xxxxxxx"]


def is_refused(text):
    """A grammar that is not translated has nothing to compare."""
    try:
        gbnf_to_lark(text)
    except InvalidGrammar as error:
        return error.reason.startswith(("left recursion", "too large, or too ambiguous"))
    return False


@settings(max_examples=50)
@given(grammars())
def test_random_grammars(grammar):
    text = printed(grammar)
    assume(not is_refused(text))
    check, matcher = check_gbnf(text), Matcher(grammar)
    wrong = [w for w in WORDS if check.check(w).fits != matcher.matches(w)]
    assert not wrong, gbnf_to_lark(text)
