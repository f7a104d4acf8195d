"""The texts of a grammar as a call of a tool has them: raw, or as a JSON string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from openai_cpu_server.structured.languages.charset import ANY, CharSet
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    literal,
    parts_first,
    rebuilt,
    seq,
)
from openai_cpu_server.structured.writing.json_text import needfully_escaped


class ToolText(NamedTuple):
    rules: Rules
    is_raw: bool
    """Else the texts are JSON strings, with their quotes."""


def tool_text(rules: Rules, mark: str) -> ToolText:
    """Raw text where `mark`, which ends that, can be in none of the texts; "": there is no such mark."""
    if mark and not may_contain(rules, mark):
        return ToolText(rules, is_raw=True)
    return ToolText(_quoted(rules), is_raw=False)


def _quoted(rules: Rules) -> Rules:
    """No character has a needless escape, as this server writes JSON."""
    known: dict[Expr, Expr] = {}
    for expr in parts_first(list(rules.values())):
        known[expr] = _escaped(expr, known)
    escaped = {name: known[expr] for name, expr in rules.items()}
    inner = next(f"{ROOT}-{number}" for number in range(len(rules) + 1) if f"{ROOT}-{number}" not in rules)
    text = escaped.pop(ROOT)
    return {ROOT: seq(Text('"'), Ref(inner), Text('"')), inner: text, **escaped}


def _escaped(expr: Expr, parts: Mapping[Expr, Expr]) -> Expr:
    if isinstance(expr, Chars):
        return needfully_escaped(expr.set)
    if isinstance(expr, Text):
        return seq(*(needfully_escaped(CharSet.chars(char)) for char in expr.text))
    return rebuilt(expr, (parts[x] for x in expr.parts))


def may_contain(rules: Rules, mark: str) -> bool:
    """Whether some text might have the mark in it, or begin one together with the mark behind it."""
    return _MarkSearch(rules, mark).finds()


class _MarkSearch:
    """Searches all texts for the mark at once. A state counts the characters that are found."""

    def __init__(self, rules: Rules, mark: str) -> None:
        self._rules = rules
        self._mark = mark
        self._alphabet = [CharSet.chars(char) for char in dict.fromkeys(mark)]
        self._others = ANY - CharSet.chars(mark)
        self._known: dict[tuple[str, int], frozenset[int]] = {}
        self._users: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._waiting: dict[tuple[str, int], None] = {}
        self._here = (ROOT, 0)

    def finds(self) -> bool:
        self._of_rule(self._here)
        while self._waiting:
            self._here = key = next(iter(self._waiting))
            del self._waiting[key]
            found = self._ends(self._rules[key[0]], frozenset((key[1],)))
            if found != self._known[key]:
                self._known[key] = found
                self._waiting |= dict.fromkeys(self._users[key])
        return any(self._is_found(state) for state in self._known[ROOT, 0])

    def _is_found(self, state: int) -> bool:
        for char in self._mark[:-1]:
            state = self._next(state, char)
        return state == len(self._mark)

    def _of_rule(self, key: tuple[str, int]) -> frozenset[int]:
        self._users.setdefault(key, set()).add(self._here)
        if key not in self._known:
            self._known[key] = frozenset()
            self._waiting[key] = None
        return self._known[key]

    def _ends(self, expr: Expr, states: frozenset[int]) -> frozenset[int]:
        if isinstance(expr, Chars):
            return self._over(expr.set, states)
        if isinstance(expr, Ref):
            return _union(self._of_rule((expr.name, state)) for state in states)
        if isinstance(expr, Alt):
            return _union(self._ends(item, states) for item in expr.items)
        if isinstance(expr, (Seq, Text)):
            for item in (
                expr.items if isinstance(expr, Seq) else literal(expr.text).parts or (literal(expr.text),)
            ):
                states = self._ends(item, states)
            return states
        if isinstance(expr, Repeat):
            return self._rounds(expr, states)
        return frozenset((len(self._mark),))  # what is not plain may contain anything

    def _rounds(self, expr: Repeat, states: frozenset[int]) -> frozenset[int]:
        found = states if expr.low == 0 else frozenset()
        for _ in range(len(self._mark) + 1 + min(expr.low, len(self._mark))):
            states = self._ends(expr.item, states)
            found |= states
        return found

    def _over(self, chars: CharSet, states: frozenset[int]) -> frozenset[int]:
        whole = len(self._mark)
        met = [each for each in self._alphabet if chars & each]
        found = {self._next(state, chr(each.ranges[0][0])) for state in states for each in met}
        resets = {whole if state == whole else 0 for state in states} if chars & self._others else set()
        return frozenset(found | resets)

    def _next(self, state: int, char: str) -> int:
        if state == len(self._mark):
            return state
        text = self._mark[:state] + char
        return next(size for size in range(len(text), -1, -1) if text.endswith(self._mark[:size]))


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
