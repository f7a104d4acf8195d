"""Choice of lexemes: whole regular rules, and regular items of the others. If an expression is not
`whole`, only its parts may be lexemes. The parts of a literal are its characters."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.structured.languages.automaton import build, state_rules, to_expr
from openai_cpu_server.structured.languages.expr import (
    ANY_CHAR,
    EMPTY,
    ROOT,
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    alt,
    both,
    literal,
    rebuilt,
    repeat,
)
from openai_cpu_server.structured.languages.rules import users
from openai_cpu_server.structured.options import Budget, InvalidGrammar, Limits, SchemaTooLarge

MOST_STEPS = 600_000
"""About a microsecond each."""


class Work:
    def __init__(self, allowed: int = MOST_STEPS) -> None:
        self._allowed = allowed
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Count steps. Raises InvalidGrammar if the sum exceeds the limit."""
        self.spent += steps
        if self.spent > self._allowed:
            message = f"too large, or too ambiguous: more than {self._allowed} steps to translate"
            raise InvalidGrammar(1, 1, message)


class TooMuch(Exception):
    """A share is used up, and there is a cheaper way to go on."""


class Share(Work):
    def __init__(self, whole: Work, allowed: int) -> None:
        super().__init__(allowed)
        self._whole = whole

    def spend(self, steps: int) -> None:
        """Count steps of the share and of the whole. Raises TooMuch, InvalidGrammar."""
        self._whole.spend(steps)
        self.spent += steps
        if self.spent > self._allowed:
            raise TooMuch


DEEPEST_LEXEME = 300
_MOST_PUT_IN = 30_000
"""Nodes that inlining may make. After that, rules stay rules."""


class RegularRules:
    """`inlined`: rules that may be one lexeme each."""

    def __init__(self, rules: dict[str, Expr], work: Work) -> None:
        self._work = work
        self.inlined: dict[str, Expr] = {}
        self._known: dict[Expr, Expr | None] = {}
        self._num_put_in = 0
        for name in bottom_up(rules):
            found = self.of(rules[name])
            if found is not None:
                self.inlined[name] = found

    def of(self, expr: Expr) -> Expr | None:
        """Return None if it is not regular or too deep. Raises InvalidGrammar."""
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
        found = rebuilt(expr, kept)
        self._num_put_in += len(found.parts)
        self._work.spend(1 + len(found.parts) // 4)
        fits = self._num_put_in < _MOST_PUT_IN and found.depth <= DEEPEST_LEXEME
        return found if fits else None


def bottom_up(rules: dict[str, Expr]) -> list[str]:
    """Rules after those that they name, without recursive rules and their users."""
    missing = {name: len(expr.references) for name, expr in rules.items()}
    users_of = users(rules)
    order = [name for name, count in missing.items() if not count]
    for name in order:
        for user in users_of.get(name, ()):
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    return order


_MARK = "#"
"""Not used in names of rules."""


class LexemePlan:
    """`rules` refer to `lexemes` by name."""

    def __init__(
        self, rules: dict[str, Expr], regular: RegularRules, whole: Callable[[Expr], bool], work: Work
    ) -> None:
        """Plan these rules. Raises InvalidGrammar."""
        self._work = work
        self._source = dict(rules)
        self._regular = regular
        self._whole = whole
        self._names: dict[Expr, Ref] = {}
        self._known: dict[Expr, Expr] = {}
        self.lexemes: dict[str, Expr] = {}
        self.rules: dict[str, Expr] = {ROOT: self._planned(Ref(ROOT))}
        if self.rules[ROOT] == Ref(ROOT):
            del self.rules[ROOT]
            queue = [ROOT]
            seen = {ROOT}
            for name in queue:
                expr = self.rules[name] = self._planned(self._source[name])
                fresh = sorted(n for n in expr.references if not is_lexeme(n) and n not in seen)
                seen.update(fresh)
                queue += fresh

    def _planned(self, expr: Expr) -> Expr:
        if expr not in self._known:
            self._known[expr] = self._plan(expr)
        return self._known[expr]

    def _plan(self, expr: Expr) -> Expr:
        self._work.spend(2)
        if expr == EMPTY:
            return expr
        if isinstance(expr, Token):
            return self._lexeme(expr)
        language = None if isinstance(expr, Seq) else self._regular.of(expr)
        if language is not None and language.is_nullable:
            filled = _filled(language)
            if filled is not None and self._whole(filled):
                return Repeat(self._lexeme(filled), 0, 1)
        elif language is not None and self._whole(language):
            return self._lexeme(language)
        if isinstance(expr, Ref):
            return expr
        if isinstance(expr, Text):
            self._work.spend(4 * len(expr.text))
            return self._planned(literal(expr.text))
        if isinstance(expr, (And, Not)):
            return self._planned(self._written_out(expr))
        if isinstance(expr, Repeat):
            return Repeat(self._planned(expr.item), expr.low, expr.high)
        assert isinstance(expr, (Seq, Alt)), expr
        return type(expr)(tuple(map(self._planned, expr.items)))

    def _written_out(self, expr: Expr) -> Expr:
        """Only lexemes can have intersections, so write one expression, or a rule for each state. Raises
        InvalidGrammar."""
        language = self._regular.of(expr)
        if language is None:
            raise InvalidGrammar(1, 1, "too large: a pattern is beside others in too many places")
        try:
            automaton = build(spelt_out(language), Budget(Limits()))
        except SchemaTooLarge:
            message = "too ambiguous: a pattern cannot be told from what may stand beside it or follow it"
            raise InvalidGrammar(1, 1, message) from None
        simple = to_expr(automaton)
        if simple is not None:
            return simple
        names = [f"state-{len(self._source)}-{i}" for i in range(len(automaton.edges))]
        self._source |= state_rules(automaton, names, Chars)
        return Ref(names[0])

    def _lexeme(self, language: Expr) -> Expr:
        if language not in self._names:
            name = f"{_MARK}{len(self._names)}"
            self._names[language] = Ref(name)
            self.lexemes[name] = language
        return self._names[language]


def _filled(language: Expr) -> Expr | None:
    if isinstance(language, Repeat) and not language.item.is_nullable:
        return repeat(language.item, 1, language.high)
    if isinstance(language, And):
        return both(*language.items, repeat(ANY_CHAR, 1, None))
    if isinstance(language, Alt):
        options = [x if not x.is_nullable else _filled(x) for x in language.items if x != EMPTY]
        return None if None in options else alt(*(x for x in options if x is not None))
    return None


def spelt_out(expr: Expr) -> Expr:
    return literal(expr.text) if isinstance(expr, Text) else rebuilt(expr, map(spelt_out, expr.parts))


def is_lexeme(name: str) -> bool:
    return name.startswith(_MARK)


def is_character(language: Expr) -> bool:
    return isinstance(language, (Chars, Token)) or (isinstance(language, Text) and len(language.text) == 1)
