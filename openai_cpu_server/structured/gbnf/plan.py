"""Decides which parts of a grammar become lexemes: whole regular rules, and regular items of the others.

An expression that is not `whole` is no lexeme, but its parts may be. A literal's parts are its characters.
"""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.structured.gbnf.regular import Regular
from openai_cpu_server.structured.gbnf.work import Work
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
    alt,
    literal,
    repeat,
)

_MARK = "#"
"""The first character of a lexeme's name; no rule's name begins so."""


class Plan:
    """`rules` are what is left of the grammar, with references to `lexemes` by name."""

    def __init__(
        self, rules: dict[str, Expr], regular: Regular, whole: Callable[[Expr], bool], work: Work
    ) -> None:
        """Plan these rules. Raises InvalidGrammar."""
        self._work = work
        self._source = rules
        self._regular = regular
        self._whole = whole
        self._names: dict[Expr, Ref] = {}
        self._known: dict[Expr, Expr] = {}
        self.lexemes: dict[str, Expr] = {}
        self.rules: dict[str, Expr] = {ROOT: self._planned(Ref(ROOT))}
        if self.rules[ROOT] == Ref(ROOT):
            del self.rules[ROOT]
            self._add_rules()

    def _add_rules(self) -> None:
        """Plan the root and every rule that it leads to."""
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
        if isinstance(expr, Seq):
            return Seq(tuple(self._planned(x) for x in expr.items))
        if isinstance(expr, Alt):
            return Alt(tuple(self._planned(x) for x in expr.items))
        assert isinstance(expr, Repeat), expr
        return Repeat(self._planned(expr.item), expr.low, expr.high)

    def _lexeme(self, language: Expr) -> Expr:
        if language not in self._names:
            name = f"{_MARK}{len(self._names)}"
            self._names[language] = Ref(name)
            self.lexemes[name] = language
        return self._names[language]


def _filled(language: Expr) -> Expr | None:
    """The language without the empty text; None where that is not simple."""
    if isinstance(language, Repeat) and not language.item.is_nullable:
        return repeat(language.item, 1, language.high)
    if isinstance(language, Alt):
        options = [x if not x.is_nullable else _filled(x) for x in language.items if x != EMPTY]
        return None if None in options else alt(*(x for x in options if x is not None))
    return None


def is_lexeme(name: str) -> bool:
    return name.startswith(_MARK)


def is_character(language: Expr) -> bool:
    """Whether the lexeme is always one character or token: it cannot be broken and need not be."""
    return isinstance(language, (Chars, Token)) or (isinstance(language, Text) and len(language.text) == 1)
