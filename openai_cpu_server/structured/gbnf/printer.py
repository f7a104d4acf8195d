r"""Printing of rules as GBNF that llama.cpp and llguidance's translator read alike: with `\xHH` escapes in
classes, characters beyond ASCII as themselves, counts in braces, and at most some thirty nested groups.
`Shaper` gives rules the form that a reader of the text would find."""

from __future__ import annotations

import functools

from openai_cpu_server.structured.gbnf.parser import MOST_TIMES
from openai_cpu_server.structured.languages.automaton import build_automaton, state_rules, to_expr
from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    Alt,
    And,
    Chars,
    Expr,
    Multiples,
    Not,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    Token,
    alt,
    every_expression,
    literal,
    parts_first,
    rebuilt,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import Budget, Limits

_PLAIN_IN_CLASS = frozenset("_.,:;@#%=<>!?' $*+(){}|\"")
_DEEPEST = 10


class Shaper:
    """Joins characters to literals, and lifts parts that nest too deep or are counted twice."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lifted: dict[Expr, str] = {}
        self._shape = functools.cache(self._shape_at)

    def shaped(self, rules: Rules) -> Rules:
        """Add the lifted rules. Raises SchemaTooLarge."""
        found = {name: self._top(expr) for name, expr in rules.items()}
        queue = list(self._lifted.items())
        for expr, name in queue:
            num_lifted = len(self._lifted)
            found[name] = self._top(expr)
            queue += list(self._lifted.items())[num_lifted:]
        return found

    def _top(self, expr: Expr) -> Expr:
        if isinstance(expr, Alt) and expr.items:
            return alt(*(self._shape(x, 0) for x in expr.items))
        return self._shape(expr, 0)

    def _shape_at(self, expr: Expr, depth: int) -> Expr:
        if isinstance(expr, (Chars, Ref, Token, Multiples)):
            return expr
        if isinstance(expr, Text):
            return expr if expr.text else EMPTY
        if isinstance(expr, Seq):
            return self._sequence(expr, depth)
        if isinstance(expr, Alt):
            return self._lift(expr) if depth >= _DEEPEST else self._alternatives(expr.items, depth)
        if isinstance(expr, (And, Not)):
            return rebuilt(expr, (self._shape(x, 0) for x in expr.parts))
        assert isinstance(expr, Repeat), expr
        high = expr.high
        if high is not None and expr.low <= MOST_TIMES:
            high = min(high, MOST_TIMES)  # more are not read, and no text has so many
        return repeat(self._operand(expr.item, depth), expr.low, high)

    def _sequence(self, expr: Seq, depth: int) -> Expr:
        parts: list[Expr] = []
        run = ""
        for item in expr.items:
            if isinstance(item, Chars) and item.set.size == 1:
                run += chr(item.set.ranges[0][0])
                continue
            parts += [Text(run)] if run else []
            run = ""
            parts.append(self._shape(item, depth))
        parts += [Text(run)] if run else []
        return seq(*parts)

    def _alternatives(self, items: tuple[Expr, ...], depth: int) -> Expr:
        filled = [x for x in items if x != EMPTY]
        found = alt(*(self._shape(x, depth + 1) for x in filled))
        return repeat(found, 0, 1) if len(filled) < len(items) else found

    def _operand(self, expr: Expr, depth: int) -> Expr:
        """Lift what is counted itself, because llguidance's translator forgets the parentheses of
        `(x{2})*`."""
        if isinstance(expr, (Chars, Text, Ref)):
            return self._shape(expr, depth)
        if depth >= _DEEPEST or isinstance(expr, Repeat) or (isinstance(expr, Alt) and EMPTY in expr.items):
            return self._lift(expr)
        if isinstance(expr, Alt):
            return self._alternatives(expr.items, depth)
        return self._shape(expr, depth + 1)

    def _lift(self, expr: Expr) -> Expr:
        if expr not in self._lifted:
            self._budget.spend("rules")
            self._lifted[expr] = f"part-{len(self._lifted) + 1}"
        return Ref(self._lifted[expr])


def gbnf_text(rules: Rules) -> str:
    """Return a line for each shaped rule. Raises SchemaTooLarge if an intersection, which GBNF lacks,
    needs too many rules."""
    plain = _Expansion(rules).plain() if any(map(_intersects, every_expression(rules.values()))) else rules
    return "".join(f"{name} ::= {_shown(expr)}\n" for name, expr in plain.items())


def _intersects(expr: Expr) -> bool:
    return isinstance(expr, (And, Not, Multiples))


_PRINTED = Limits(regex_states=20_000, regex_work=100_000, rules=40_000)


class _Expansion:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._budget = Budget(_PRINTED)
        self._expansions: dict[Expr, Expr] = {}
        self._added: Rules = {}

    def plain(self) -> Rules:
        found = {name: self._of(expr) for name, expr in self._rules.items()}
        return Shaper(self._budget).shaped(found | self._added)

    def _of(self, expr: Expr) -> Expr:
        if not expr.is_extended:
            return expr
        if expr not in self._expansions:
            is_joined = _intersects(expr)
            found = self._written_out(expr) if is_joined else rebuilt(expr, map(self._of, expr.parts))
            self._expansions[expr] = found
        return self._expansions[expr]

    def _written_out(self, expr: Expr) -> Expr:
        automaton = build_automaton(self._characters(expr), self._budget)
        simple = to_expr(automaton)
        if simple is not None:
            return simple
        names = [f"state-{len(self._added) + i}" for i in range(len(automaton.edges))]
        self._budget.spend("rules", len(names))
        self._added |= state_rules(automaton, names, Chars)
        return Ref(names[0])

    def _characters(self, expr: Expr) -> Expr:
        """Intersections are regular, and so are the rules that they name."""
        if isinstance(expr, Ref):
            return self._characters(self._rules[expr.name])
        if isinstance(expr, Text):
            return literal(expr.text)
        if isinstance(expr, Multiples):
            return expr.language
        return rebuilt(expr, map(self._characters, expr.parts))


def _shown(expr: Expr) -> str:
    if isinstance(expr, Chars):
        return char_class(expr.set)
    if isinstance(expr, Text):
        return printed_literal(expr.text)
    if isinstance(expr, Ref):
        return expr.name
    if isinstance(expr, Token):
        return f"<[{expr.number}]>"
    if isinstance(expr, Multiples):
        return f"multiples of {expr.step}"
    if isinstance(expr, Seq):
        return " ".join(f"({_shown(x)})" if isinstance(x, Alt) else _shown(x) for x in expr.items) or '""'
    if isinstance(expr, Alt):
        return " | ".join(map(_shown, expr.items))
    assert isinstance(expr, Repeat), expr
    shown = _shown(expr.item)
    return (f"({shown})" if _is_group(expr.item) else shown) + expr.mark


def _is_group(expr: Expr) -> bool:
    return isinstance(expr, (Seq, Alt, Repeat)) or (isinstance(expr, Text) and len(expr.text) > 1)


def text_length(rules: Rules) -> int:
    lengths: dict[Expr, int] = {}
    for expr in parts_first(rules.values()):
        lengths[expr] = _length(expr, lengths)
    return sum(len(f"{name} ::= \n") + lengths[expr] for name, expr in rules.items())


def _length(expr: Expr, lengths: dict[Expr, int]) -> int:
    inner = sum(map(lengths.__getitem__, expr.parts))
    if isinstance(expr, Seq):
        groups = sum(isinstance(x, Alt) for x in expr.items)
        return inner + 2 * groups + len(expr.items) - 1 if expr.items else len('""')
    if isinstance(expr, Alt):
        return inner + len(" | ") * (len(expr.items) - 1)
    if isinstance(expr, Repeat):
        return inner + 2 * _is_group(expr.item) + len(expr.mark)
    if expr.parts:
        return inner + len("() & ") * len(expr.parts)
    return len(_shown(expr))


_ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)},
    **str.maketrans({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}),
}


def printed_literal(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


@functools.lru_cache(maxsize=1024)
def char_class(chars: CharSet) -> str:
    if chars.ranges and chars.ranges[-1][1] == MAX and chars != ANY:
        return f"[^{_ranges(~chars)}]"
    return f"[{_ranges(chars)}]" if chars else f"[^{_ranges(ANY)}]"


def _ranges(chars: CharSet) -> str:
    ranges: list[tuple[int, int]] = []
    for low, high in chars.ranges:
        if low == 0xE000 and ranges and ranges[-1][1] == 0xD7FF:  # there are no surrogates between them
            ranges[-1] = (ranges[-1][0], high)
        else:
            ranges.append((low, high))
    texts = []
    for low, high in ranges:
        dash = "-" if high > low + 1 else ""
        texts.append(_in_class(low) if low == high else f"{_in_class(low)}{dash}{_in_class(high)}")
    return "".join(texts)


def _in_class(code: int) -> str:
    char = chr(code)
    if code >= 0x80 or (char.isascii() and char.isalnum()) or char in _PLAIN_IN_CLASS:
        return char
    return f"\\x{code:02x}"
