"""Finds the rules that are regular and shallow enough to be one lexeme, and puts other rules into them."""

from __future__ import annotations

from openai_cpu_server.structured.gbnf.work import Work
from openai_cpu_server.structured.languages.expr import Alt, Expr, Ref, Repeat, Seq, Token, alt, repeat, seq

DEEPEST_LEXEME = 300
_MOST_PUT_IN = 30_000
"""The most nodes that putting rules into others may make in a grammar. After that, rules stay rules."""


class Regular:
    """Replaces references by the rules' expressions. `inlined` are the rules that may be one lexeme each."""

    def __init__(self, rules: dict[str, Expr], work: Work) -> None:
        """Look at these rules. Raises InvalidGrammar."""
        self._work = work
        self.inlined: dict[str, Expr] = {}
        self._known: dict[Expr, Expr | None] = {}
        self._num_put_in = 0
        for name in bottom_up(rules):
            found = self.of(rules[name])
            if found is not None:
                self.inlined[name] = found

    def of(self, expr: Expr) -> Expr | None:
        """The expression without references; None if it is not regular, or too deep."""
        if expr not in self._known:
            self._known[expr] = self._of(expr)
        return self._known[expr]

    def _of(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Ref):
            return self.inlined.get(expr.name)
        if isinstance(expr, Token):
            return None
        if not expr.references:
            return expr
        kept: list[Expr] = []
        for part in expr.parts:
            found = self.of(part) if part.references else part
            if found is None:
                return None
            kept.append(found)
        found = _rebuilt(expr, kept)
        self._num_put_in += len(found.parts)
        self._work.spend(1 + len(found.parts) // 4)
        fits = self._num_put_in < _MOST_PUT_IN and found.depth <= DEEPEST_LEXEME
        return found if fits else None


def _rebuilt(expr: Expr, parts: list[Expr]) -> Expr:
    if isinstance(expr, Seq):
        return seq(*parts)
    if isinstance(expr, Alt):
        return alt(*parts)
    assert isinstance(expr, Repeat), expr
    return repeat(parts[0], expr.low, expr.high)


def bottom_up(rules: dict[str, Expr]) -> list[str]:
    """The rules, each after those that it names;
    rules that need themselves, and rules that need those, are missing."""
    missing = {name: len(expr.references) for name, expr in rules.items()}
    users: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in expr.references:
            users.setdefault(used, []).append(name)
    order = [name for name, count in missing.items() if not count]
    for name in order:
        for user in users.get(name, ()):
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    return order
