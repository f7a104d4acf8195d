"""Texts of a grammar as they stand in a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from openai_cpu_server.structured.languages.charset import ANY, CharSet
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Chars,
    Expr,
    Ref,
    Rules,
    Text,
    literal,
    parts_first,
    rebuilt,
    seq,
)
from openai_cpu_server.structured.languages.product import RuleProduct, merged
from openai_cpu_server.structured.options import InvalidGrammar
from openai_cpu_server.structured.writing.grammar import pruned
from openai_cpu_server.structured.writing.json_text import needfully_escaped


class ToolText(NamedTuple):
    rules: Rules
    is_raw: bool
    """False for JSON strings with their quotes."""


def tool_text(rules: Rules, mark: str) -> ToolText:
    """Return raw texts without `mark`, which ends them, or JSON strings if that leaves nothing or is too
    much work. `mark`: "" for JSON strings."""
    kept = _without_mark(rules, mark) if mark else {}
    return ToolText(kept, is_raw=True) if kept else ToolText(_quoted(rules), is_raw=False)


def _without_mark(rules: Rules, mark: str) -> Rules:
    try:
        return pruned(_MarkFree(rules, mark).rules)
    except InvalidGrammar:
        return {}


def _quoted(rules: Rules) -> Rules:
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


class _MarkFree(RuleProduct[int]):
    """A state counts the characters of the mark that have come."""

    def __init__(self, source: Rules, mark: str) -> None:
        self._mark = mark
        self._alphabet = [CharSet.chars(char) for char in dict.fromkeys(mark)]
        self._others = ANY - CharSet.chars(mark)
        super().__init__(dict(source), ROOT, 0)

    def _leaf(self, expr: Expr, before: int) -> dict[int, Expr]:
        if isinstance(expr, Text):
            return self._ways(literal(expr.text), before)
        assert isinstance(expr, Chars), expr
        ways: list[dict[int, Expr]] = [{0: Chars(expr.set & self._others)}] if expr.set & self._others else []
        for each in self._alphabet:
            after = self._next(before, chr(each.ranges[0][0]))
            if expr.set & each and after < len(self._mark):
                ways.append({after: Chars(each)})
        return merged(ways)

    def _may_end(self, state: int) -> bool:
        """The text's end and the mark behind it must not form the mark sooner."""
        for char in self._mark[:-1]:
            state = self._next(state, char)
            if state == len(self._mark):
                return False
        return True

    def _next(self, state: int, char: str) -> int:
        text = self._mark[:state] + char
        return next(size for size in range(len(text), -1, -1) if text.endswith(self._mark[:size]))
