"""The Lark text has exactly the language of the GBNF text: against a matcher that tries everything.

Grammars are plain tuples, printed as text, and matched in a way that is slow and short.
"""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from openai_cpu_server.structured.options import InvalidGrammar
from tests.structured.making import check_gbnf, gbnf_to_lark

Node = tuple[Any, ...]
"""(kind, ...): text s; class chars is_negated; any; ref name; seq nodes; alt nodes; times node low high."""

NAMES = ("root", "a", "b-c", "D")
LETTERS = "xyéè\n"


def grammars() -> st.SearchStrategy[dict[str, Node]]:
    return st.fixed_dictionaries({name: nodes() for name in NAMES})


def nodes() -> st.SearchStrategy[Node]:
    leaves = st.one_of(
        st.builds(lambda s: ("text", s), st.text(LETTERS, max_size=3)),
        st.builds(lambda c, n: ("class", c, n), st.text(LETTERS, min_size=1, max_size=3), st.booleans()),
        st.just(("any",)),
        st.builds(lambda name: ("ref", name), st.sampled_from(NAMES[1:])),
    )
    return st.recursive(leaves, _larger, max_leaves=8)


def _larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.one_of(
        st.builds(lambda x: ("seq", tuple(x)), st.lists(inner, max_size=3)),
        st.builds(lambda x: ("alt", tuple(x)), st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            lambda x, low, more: ("times", x, low, None if more is None else low + more),
            inner,
            st.integers(0, 2),
            st.none() | st.integers(0, 2),
        ),
    )


def printed(grammar: dict[str, Node]) -> str:
    return "\n".join(f"{name} ::= {_shown(node)}" for name, node in grammar.items())


def _shown(node: Node) -> str:
    kind = node[0]
    if kind == "text":
        return '"' + "".join(map(_escaped, node[1])) + '"'
    if kind == "class":
        return f"[{'^' if node[2] else ''}{''.join(map(_escaped, node[1]))}]"
    if kind in ("any", "ref"):
        return node[1] if kind == "ref" else "."
    if kind == "seq":
        return "(" + " ".join(map(_shown, node[1])) + ")"
    if kind == "alt":
        return "(" + " | ".join(map(_shown, node[1])) + ")"
    return f"{_shown(node[1])}{{{node[2]},{'' if node[3] is None else node[3]}}}"


def _escaped(char: str) -> str:
    return {"\n": "\\n", "é": "\\u00e9", "è": "\\xe8"}.get(char, char)


class Matcher:
    def __init__(self, grammar: dict[str, Node]) -> None:
        self._grammar = grammar

    def matches(self, text: str) -> bool:
        self._known: dict[tuple[Node, int], frozenset[int]] = {}
        return len(text) in self._ends(("ref", "root"), 0, text)

    def _ends(self, node: Node, start: int, text: str) -> frozenset[int]:
        key = (node, start)
        if key not in self._known:
            self._known[key] = frozenset(self._compute(node, start, text))
        return self._known[key]

    def _compute(self, node: Node, start: int, text: str) -> set[int]:
        kind = node[0]
        if kind == "text":
            return {start + len(node[1])} if text.startswith(node[1], start) else set()
        if kind in ("class", "any"):
            fits = start < len(text) and (kind == "any" or (text[start] in node[1]) != node[2])
            return {start + 1} if fits else set()
        if kind == "ref":
            return set(self._ends(self._grammar[node[1]], start, text))
        if kind == "alt":
            return {end for item in node[1] for end in self._ends(item, start, text)}
        if kind == "seq":
            return self._sequence(node[1], start, text)
        return self._times(node, start, text)

    def _sequence(self, items: tuple[Node, ...], start: int, text: str) -> set[int]:
        ends = {start}
        for item in items:
            ends = {end for each in ends for end in self._ends(item, each, text)}
        return ends

    def _times(self, node: Node, start: int, text: str) -> set[int]:
        """Empty repetitions add nothing once there are enough."""
        _, item, low, high = node
        ends, fresh, count = {start} if low == 0 else set(), {start}, 0
        while fresh and (high is None or count < high) and count <= low + len(text):
            fresh = {end for each in fresh for end in self._ends(item, each, text)}
            count += 1
            if count >= low:
                ends |= fresh
        return ends


_SOME = LETTERS[:3] + LETTERS[4]
WORDS = ["".join(w) for n in range(4) for w in itertools.product(_SOME, repeat=n)]
WORDS += ["".join(w) for w in itertools.islice(itertools.product(_SOME, repeat=4), 0, None, 3)]
WORDS += ["è", "èé", "xè", "éèx", "xyxyxy", "yxéyx", "x\nx\nx", "éééééé", "xxxxxxx"]


def is_refused(text):
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
