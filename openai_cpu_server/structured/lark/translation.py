"""Rules as Lark text with exactly the same language. Terminals that are not literals have Rust's syntax."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable

from openai_cpu_server.contract.grammar import CAPTURE, is_list_item
from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    ROOT,
    Alt,
    And,
    Chars,
    Expr,
    GrammarRules,
    Multiples,
    Not,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    every_expression,
    parts_first,
)
from openai_cpu_server.structured.languages.rules import order, takes_long_texts, too_deep
from openai_cpu_server.structured.lark import plan as planning
from openai_cpu_server.structured.lark.conflicts import conflicting
from openai_cpu_server.structured.options import InvalidGrammar

_SHORT = 12
"""Nodes of the largest part that is written again wherever it stands."""
_HIGHEST = 6
"""Levels of parentheses in one terminal. llguidance reads at most some thirty."""


class _Terminals:
    def __init__(self, terminals: list[tuple[str, Expr]]) -> None:
        self._terminals = terminals
        self._bottom_up = parts_first([expr for _, expr in terminals])
        self._parts: dict[Expr, str] = {}
        self._heights: dict[Expr, int] = {}
        self._name_parts()

    def _name_parts(self) -> None:
        sizes: dict[Expr, int] = {}
        uses: dict[Expr, int] = {}
        for expr in self._bottom_up:
            size = 1
            for part in expr.parts:
                size += sizes[part]
                uses[part] = uses.get(part, 0) + 1
            sizes[expr] = min(size, _SHORT + 1)
        for expr in self._bottom_up:
            self._heights[expr] = self._height(expr)
            is_shared = sizes[expr] > _SHORT and uses.get(expr, 0) > 1
            levels = 0 if self._heights[expr] else expr.depth  # Rust reads at most 250 levels
            if is_shared or self._heights[expr] >= _HIGHEST or levels % 60 == 59:
                self._parts[expr] = f"P{len(self._parts)}"

    def _height(self, expr: Expr) -> int:
        highest = 0
        for part in expr.parts:
            height = 1 if part in self._parts else self._heights[part]
            if height > highest:
                highest = height
        return highest + 1 if highest or isinstance(expr, (And, Not)) else 0

    def lines(self) -> list[str]:
        named = [(name, expr) for expr, name in self._parts.items()]
        return [f"{name}: {self._body(expr)}" for name, expr in [*self._terminals, *named]]

    def _body(self, expr: Expr) -> str:
        if not self._heights[expr]:
            return f"/{pattern(expr)}/" if expr != EMPTY else '""'
        if isinstance(expr, (Seq, Alt, And)):
            between = {Seq: " ", Alt: " | ", And: " & "}[type(expr)]
            return between.join(map(self._operand, expr.items))
        if isinstance(expr, Not):
            return f"~{self._operand(expr.item)}"
        assert isinstance(expr, Repeat), expr
        return f"({self._operand(expr.item)}){expr.mark}"

    def _operand(self, expr: Expr) -> str:
        if expr in self._parts:
            return self._parts[expr]
        body = self._body(expr)
        return f"({body})" if self._heights[expr] else body


def pattern(expr: Expr) -> str:
    if isinstance(expr, Chars):
        return _class(expr.set)
    if isinstance(expr, Text):
        return "".join(map(_character, map(ord, expr.text)))
    if isinstance(expr, Seq):
        return "".join(f"(?:{pattern(x)})" if isinstance(x, Alt) else pattern(x) for x in expr.items)
    if isinstance(expr, Alt):
        return "|".join(pattern(x) for x in expr.items)
    assert isinstance(expr, Repeat), expr
    item = pattern(expr.item)
    inner = item if isinstance(expr.item, Chars) else f"(?:{item})"
    return inner + expr.mark


@functools.lru_cache(maxsize=2048)
def _class(chars: CharSet) -> str:
    if not chars:
        return r"[^\x{0}-\x{10ffff}]"
    if chars.size == 1:
        return _character(chars.ranges[0][0])
    is_negated = chars != ANY and chars.ranges[-1][1] == MAX
    ranges = (~chars if is_negated else chars).ranges
    parts = [
        _character(low) if low == high else f"{_character(low)}-{_character(high)}" for low, high in ranges
    ]
    return f"[{'^' if is_negated else ''}{''.join(parts)}]"


@functools.lru_cache(maxsize=2048)
def _character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


_HEAD = "%llguidance {}\n\n"
_HEAD_OF_LONG = '%llguidance {"no_forcing": true}\n\n'
_LONG = 16_384
"""Length of a forced part from which a grammar is read token by token.

llguidance tokenises what must come next at each look, which takes seconds for a million characters.
"""
_START = "start"
_NEVER = "NEVER"


class _Writer:
    def __init__(self, plan: planning.LexemePlan, renumbered: Callable[[int], int]) -> None:
        self._renumbered = renumbered
        self._lexemes = plan.lexemes
        self.names = {name: f"L{name[1:]}" for name in plan.lexemes}
        self._taken: set[str] = {_START}
        for name in plan.rules:
            self.names[name] = _START if name == ROOT else self._fresh(name)

    def _fresh(self, name: str) -> str:
        stem = "r_" + re.sub(r"[^a-z0-9]", "_", name.lower())
        fresh = stem if stem not in self._taken else f"{stem}_n{len(self._taken)}"
        self._taken.add(fresh)
        return fresh

    def head(self, rule: str) -> str:
        return self.names[rule] + (f'[{CAPTURE}{rule}"]' if is_list_item(rule) else "")

    def terminals(self) -> list[tuple[str, Expr]]:
        inline = (Text, Token, Multiples)
        return [(self.names[n], x) for n, x in self._lexemes.items() if not isinstance(x, inline)]

    def shown(self, expr: Expr) -> str:
        if isinstance(expr, Ref):
            return self._reference(expr.name)
        if isinstance(expr, Seq):
            return " ".join(self._operand(x) for x in expr.items) or '""'
        if isinstance(expr, Alt):
            return " | ".join(self.shown(x) for x in expr.items)
        assert isinstance(expr, Repeat), expr
        inner = self._operand(expr.item)
        return (f"({inner})" if isinstance(expr.item, Repeat) else inner) + expr.mark

    def _operand(self, expr: Expr) -> str:
        return f"({self.shown(expr)})" if isinstance(expr, (Alt, Seq)) else self.shown(expr)

    def _reference(self, name: str) -> str:
        expr = self._lexemes.get(name) if planning.is_lexeme(name) else None
        if isinstance(expr, Token):
            return f"<[{self._renumbered(expr.number)}]>"
        if isinstance(expr, Multiples):
            bounds = {"minimum": expr.low, "maximum": expr.high}
            schema = {k: v for k, v in bounds.items() if v is not None}
            return "%json " + json.dumps({"type": "integer", "multipleOf": expr.step, **schema})
        return json.dumps(expr.text) if isinstance(expr, Text) else self.names[name]


_GENTLE_ROUNDS = 2
_ROUNDS = 3
_MOST_TO_CONFIRM = 6_000
_MOST_TRIED = 20
_CHARACTERS_PER_STEP = 6


class Translation:
    def __init__(self, rules: GrammarRules, *, num_read: int = 0, work: planning.Work | None = None) -> None:
        """`num_read`: characters that count as work."""
        work = work or planning.Work()
        work.spend(num_read // _CHARACTERS_PER_STEP)
        self._plan = _plan(rules, work)
        self.share = work.share
        planning.check_symbols(self._plan)
        self._first, deepest = order(self._plan.rules, ROOT)
        if deepest:
            raise InvalidGrammar(1, 1, too_deep(deepest))
        self._head = _HEAD_OF_LONG if takes_long_texts(rules, _LONG) else _HEAD

    def text(self, renumbered: Callable[[int], int] = lambda token: token) -> str:
        """`renumbered`: maps control tokens to the reader's vocabulary."""
        writer = _Writer(self._plan, renumbered)
        lines = [f"{writer.head(name)}: {writer.shown(expr)}" for name, expr in self._plan.rules.items()]
        lines += _Terminals(writer.terminals()).lines()
        if self._first:
            # The root names them in an alternative that no text can take, because they are compiled first.
            ordered = " ".join(writer.names[name] for name in self._first)
            lines[0] = lines[0].replace(":", f": {_NEVER} {ordered} |", 1)
            lines += _Terminals([(_NEVER, Chars(~ANY))]).lines()
        return self._head + "\n".join(lines) + "\n"

    def intersections(self) -> list[str]:
        """Return each intersection as a grammar, because it may be too complex to run."""
        found = [
            expr
            for expr in self._plan.lexemes.values()
            if any(
                isinstance(part, And) and not any(isinstance(x, Not) for x in part.items)
                for part in (expr, *expr.parts)
            )
        ]
        return [
            _HEAD + "\n".join([f"{_START}: L", *_Terminals([("L", expr)]).lines()]) + "\n"
            for expr in found[:_MOST_TRIED]
        ]


def numbered_from(first: int) -> Callable[[int], int]:
    numbers: dict[int, int] = {}
    return lambda token: numbers.setdefault(token, first + len(numbers))


def _plan(rules: GrammarRules, work: planning.Work) -> planning.LexemePlan:
    """Make lexemes as large as possible, and break those that conflict, at last into single characters."""
    regular, share = planning.RegularRules(rules, work), planning.Share(work, _MOST_TO_CONFIRM)
    items = {regular.of(rules[name]) for name in rules if is_list_item(name)}
    leads = planning.union(map(planning.lead_of_char, "-0123456789"))
    numbers = {x for x in items if x is not None and planning.FirstBytes().mask(x) & leads}
    """Numbers of lists whose items differ. In parts, each beginning of one would count as an item."""
    broken: set[Expr] = set()
    for number in range(_ROUNDS):
        plan = planning.LexemePlan(rules, regular, lambda x: x not in broken or x in numbers, work)
        found = [plan.lexemes[name] for name in conflicting(plan, work, share)]
        if not found:
            return plan
        if number >= _GENTLE_ROUNDS:
            found = [expr for expr in every_expression(found) if not planning.is_character(expr)]
        broken.update(found)
    plan = planning.LexemePlan(rules, regular, lambda x: planning.is_character(x) or x in numbers, work)
    if numbers and conflicting(plan, work, share):
        raise InvalidGrammar(
            1, 1, "too ambiguous: numbers of a list with 'uniqueItems' are beside other numbers"
        )
    return plan
