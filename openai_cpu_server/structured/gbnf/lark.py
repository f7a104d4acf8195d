"""Writes a plan in llguidance's dialect of Lark: words as strings, other lexemes as terminals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from openai_cpu_server.structured.gbnf.plan import Plan, is_lexeme
from openai_cpu_server.structured.gbnf.terminals import count, terminal_lines
from openai_cpu_server.structured.languages.charset import ANY
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    ROOT,
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
)

_HEAD = "%llguidance {}\n\n"
_START = "start"
_NEVER = "NEVER"


def lark_text(plan: Plan, renumbered: Callable[[int], int], first: Sequence[str] = ()) -> str:
    """`first`: the rules that llguidance shall compile before all others, in this order."""
    writer = _Writer(plan, renumbered)
    lines = [f"{writer.name(name)}: {writer.shown(expr)}" for name, expr in plan.rules.items()]
    lines += terminal_lines(writer.terminals())
    if first:
        # The root names them in an alternative that no text can take.
        ordered = " ".join(map(writer.name, first))
        lines[0] = lines[0].replace(":", f": {_NEVER} {ordered} |", 1)
        lines += terminal_lines([(_NEVER, Chars(~ANY))])
    return _HEAD + "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, plan: Plan, renumbered: Callable[[int], int]) -> None:
        self._renumbered = renumbered
        self._lexemes = plan.lexemes
        self._names: dict[str, str] = {}
        self._taken: set[str] = {_START}
        self._named(plan)

    def _named(self, plan: Plan) -> None:
        for name in plan.lexemes:
            self._names[name] = f"L{name[1:]}"
        for name in plan.rules:
            self._names[name] = _START if name == ROOT else self._fresh(name)

    def _fresh(self, name: str) -> str:
        stem = "r_" + re.sub(r"[^a-z0-9]", "_", name.lower())
        fresh = stem if stem not in self._taken else f"{stem}_n{len(self._taken)}"
        self._taken.add(fresh)
        return fresh

    def name(self, rule: str) -> str:
        return self._names[rule]

    def terminals(self) -> list[tuple[str, Expr]]:
        return [(self._names[n], x) for n, x in self._lexemes.items() if not isinstance(x, (Text, Token))]

    def shown(self, expr: Expr) -> str:
        if isinstance(expr, Ref):
            return self._reference(expr.name)
        if isinstance(expr, Seq):
            return " ".join(self._operand(x) for x in expr.items) or '""'
        if isinstance(expr, Alt):
            return " | ".join(self.shown(x) for x in expr.items)
        assert isinstance(expr, Repeat), expr
        inner = self._operand(expr.item)
        return (f"({inner})" if isinstance(expr.item, Repeat) else inner) + count(expr.low, expr.high)

    def _operand(self, expr: Expr) -> str:
        return f"({self.shown(expr)})" if isinstance(expr, Alt) or expr == EMPTY else self._grouped(expr)

    def _grouped(self, expr: Expr) -> str:
        return f"({self.shown(expr)})" if isinstance(expr, Seq) else self.shown(expr)

    def _reference(self, name: str) -> str:
        expr = self._lexemes.get(name) if is_lexeme(name) else None
        if isinstance(expr, Token):
            return f"<[{self._renumbered(expr.number)}]>"
        return json.dumps(expr.text) if isinstance(expr, Text) else self._names[name]
