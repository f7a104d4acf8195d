"""Strings and numbers -> grammar: one lexeme if it can be written down, else a rule for each state."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.structured.languages.automaton import Automaton
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import EMPTY, Chars, Expr, Ref, Text, alt, seq
from openai_cpu_server.structured.values.strings import Strings
from openai_cpu_server.structured.writing.grammar import Grammar
from openai_cpu_server.structured.writing.json_text import JsonText


class Lexemes:
    def __init__(self, grammar: Grammar, strings: Strings) -> None:
        self._grammar = grammar
        self.text = JsonText(grammar)
        self._strings = strings

    def string(self, language: Expr) -> Expr:
        """The strings of a language, with quotes."""
        simple = self._strings.simplified(language)
        if simple is not None:
            return self.text.string(simple)
        return seq(Text('"'), self._by_states(language, "text"), Text('"'))

    def defined(self, hint: str, expr: Expr) -> Expr:
        """A rule for an expression that is grammar already."""
        return self._grammar.define(hint, expr)

    def number(self, language: Expr, hint: str) -> Expr:
        simple = self._strings.simplified(language)
        return self._by_states(language, hint) if simple is None else self._grammar.define(hint, simple)

    def _by_states(self, language: Expr, hint: str) -> Expr:
        automaton = self._strings.automaton(language)
        return by_states(automaton, self._grammar, hint, lambda chars: self.text.content(Chars(chars)))


def by_states(automaton: Automaton, grammar: Grammar, hint: str, written: Callable[[CharSet], Expr]) -> Expr:
    """A rule for each state of the automaton, which is slower to
    run than one lexeme but short to write. `written` gives the text of one character."""
    names = [grammar.reserve(hint) for _ in automaton.edges]
    for state, edges in enumerate(automaton.edges):
        options = [seq(written(chars), Ref(names[to])) for chars, to in edges]
        ends = [EMPTY] if state in automaton.accepting else []
        grammar.set(names[state], alt(*ends, *options))
    return Ref(names[0])
