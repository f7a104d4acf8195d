"""The Lark text has exactly the language of the GBNF text: against a matcher that tries everything.

Grammars are plain tuples, printed as text, and matched in a way that is slow and short.
"""

from __future__ import annotations

import functools
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


def grammar_text(grammar: dict[str, Node]) -> str:
    return "\n".join(f"{name} ::= {_node_text(node)}" for name, node in grammar.items())


def _node_text(node: Node) -> str:
    match node:
        case ("text", text):
            return '"' + "".join(map(_escaped, text)) + '"'
        case ("class", chars, is_negated):
            return f"[{'^' if is_negated else ''}{''.join(map(_escaped, chars))}]"
        case ("any",):
            return "."
        case ("ref", name):
            return name
        case ("seq" | "alt" as kind, items):
            return "(" + (" " if kind == "seq" else " | ").join(map(_node_text, items)) + ")"
    _, item, low, high = node
    return f"{_node_text(item)}{{{low},{'' if high is None else high}}}"


def _escaped(char: str) -> str:
    return {"\n": "\\n", "é": "\\u00e9", "è": "\\xe8"}.get(char, char)


def matches(grammar: dict[str, Node], text: str) -> bool:
    @functools.cache
    def ends(node: Node, start: int) -> set[int]:
        match node:
            case ("text", part):
                return {start + len(part)} if text.startswith(part, start) else set()
            case ("any",) | ("class", _, _):
                fits = node[0] == "any" or (text[start : start + 1] in node[1]) != node[2]
                return {start + 1} if fits and start < len(text) else set()
            case ("ref", name):
                return ends(grammar[name], start)
            case ("alt", items):
                return {end for item in items for end in ends(item, start)}
            case ("seq", items):
                return functools.reduce(after, items, {start})
        _, item, low, high = node
        steps = range(low + len(text) if high is None else high)  # repetitions of the empty text add nothing
        reached = [*itertools.accumulate(steps, lambda found, _: after(found, item), initial={start})]
        return set().union(*reached[low:])

    def after(starts: set[int], item: Node) -> set[int]:
        return {end for start in starts for end in ends(item, start)}

    return len(text) in ends(("ref", "root"), 0)


_SOME = LETTERS[:3] + LETTERS[4]
WORDS = ["".join(w) for n in range(4) for w in itertools.product(_SOME, repeat=n)]
WORDS += ["".join(w) for w in itertools.islice(itertools.product(_SOME, repeat=4), 0, None, 3)]
WORDS += ["è", "èé", "xè", "éèx", "xyxyxy", "yxéyx", "x\nx\nx", "éééééé", "xxxxxxx"]


@settings(max_examples=50)
@given(st.fixed_dictionaries({name: nodes() for name in NAMES}))
def test_random_grammars(grammar):
    text = grammar_text(grammar)
    try:
        check = check_gbnf(text)
    except InvalidGrammar as error:
        assume(not error.reason.startswith(("left recursion", "too large, or too ambiguous")))
        raise
    wrong = [w for w in WORDS if check.check(w).fits != matches(grammar, w)]
    assert not wrong, gbnf_to_lark(text)
