"""Languages of strings and property names, and lexemes of scalars."""

from __future__ import annotations

import functools

from openai_cpu_server.structured.languages.automaton import (
    Deriver,
)
from openai_cpu_server.structured.languages.expr import (
    ALL,
    NOTHING,
    Chars,
    Expr,
    Text,
    alt,
    any_of,
    both,
    negate,
    seq,
)
from openai_cpu_server.structured.languages.lengths import PlainLanguages, bounded
from openai_cpu_server.structured.logic.goals import Branch, Goal, Goals, limits_of
from openai_cpu_server.structured.options import Budget, Limits, UnenforcedReport
from openai_cpu_server.structured.scalars.regex import FORMATS, full_language, search_language
from openai_cpu_server.structured.schema.nodes import Format, JsonKind, Length, Pattern, Scalars
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.json_text import JsonText

_MOST_LOOKED_AT = 8
"""Excluded names considered when checking if a language has any others."""


class StringLanguages:
    def __init__(self, goals: Goals, budget: Budget, report: UnenforcedReport) -> None:
        self._goals = goals
        self._report = report
        self._budget = budget
        self.pattern = functools.cache(lambda pattern: search_language(pattern, budget.limits))
        self.plain = PlainLanguages(budget)
        self._deriver = Deriver(budget)

    def language(self, branch: Branch) -> Expr:
        return self._language(self._without_clashes(branch))

    def _language(self, branch: Branch) -> Expr:
        if any(isinstance(f.node, Scalars) and f.is_true for f in branch):
            return any_of(self._listed(branch))
        low, high = limits_of(branch, Length)
        return bounded(both(*self._parts(branch)), low, high)

    def listed(self, branch: Branch) -> list[str]:
        return self._listed(self._without_clashes(branch))

    def _listed(self, branch: Branch) -> list[str]:
        lists = [f.node.strings for f in branch if isinstance(f.node, Scalars) and f.is_true]
        common = [x for x in lists[0] if all(x in other for other in map(set, lists[1:]))]
        low, high = limits_of(branch, Length)
        parts = self._parts(branch)
        return [x for x in common if self._fits(x, parts, low, high)]

    def _without_clashes(self, branch: Branch) -> Branch:
        """Formats give way to other facts, because a format is an annotation in the standard."""
        formats = [f for f in branch if isinstance(f.node, Format) and f.is_true]
        others = tuple(f for f in branch if f not in formats)
        if not formats or not others or not self.plain.is_empty(self._language(branch)):
            return branch
        if self.plain.is_empty(self._language(others)):
            return branch
        for fact in formats:
            self._report.note(*self._goals.table.place(fact.number))
        return others

    def _parts(self, branch: Branch) -> list[Expr]:
        skipped = [
            f for f in branch if isinstance(f.node, Length) or (isinstance(f.node, Scalars) and f.is_true)
        ]
        return [self._part(f.node, f.is_true) for f in branch if f not in skipped]

    def _part(self, node: object, is_true: bool) -> Expr:
        if isinstance(node, Pattern):
            found = self.pattern(node.pattern)
        elif isinstance(node, Format):
            found = _format_language(node.name)
        else:
            assert isinstance(node, Scalars), node
            found = any_of(node.strings)
        return found if is_true else negate(found)

    def _fits(self, text: str, parts: list[Expr], low: int, high: int | None) -> bool:
        if len(text) < low or (high is not None and len(text) > high):
            return False
        return all(self.matches(part, text) for part in parts)

    def listed_of(self, goal: Goal) -> list[str] | None:
        """Return None if they are not listed."""
        branches = self._goals.branches(goal, JsonKind.STRING)
        if not all(any(isinstance(f.node, Scalars) and f.is_true for f in b) for b in branches):
            return None
        return list(dict.fromkeys(text for branch in branches for text in self.listed(branch)))

    def matches(self, language: Expr, text: str) -> bool:
        return self._deriver.matches(language, text)

    def of_goal(self, goal: Goal) -> Expr:
        languages = [self.language(b) for b in self._goals.branches(goal, JsonKind.STRING)]
        return ALL if ALL in languages else alt(*languages)


@functools.lru_cache(maxsize=len(FORMATS))
def _format_language(name: str) -> Expr:
    return full_language(FORMATS[name], Limits())


class ScalarLexemes:
    def __init__(self, grammar: GrammarBuilder, strings: StringLanguages) -> None:
        self.grammar = grammar
        self.text = JsonText(grammar)
        self._strings = strings

    def string(self, language: Expr) -> Expr:
        simple = self._strings.plain.simplified(language)
        if simple is not None:
            return self.text.string(simple)
        return seq(Text('"'), self._by_states(language, "text"), Text('"'))

    def number(self, language: Expr, hint: str) -> Expr:
        simple = self._strings.plain.simplified(language)
        return self._by_states(language, hint) if simple is None else self.grammar.define(hint, simple)

    def _by_states(self, language: Expr, hint: str) -> Expr:
        automaton = self._strings.plain.automaton(language)
        return self.grammar.by_states(hint, automaton, lambda chars: self.text.content(Chars(chars)))


class NameKeys:
    def __init__(self, strings: StringLanguages, lexemes: ScalarLexemes) -> None:
        self._strings = strings
        self._lexemes = lexemes

    def exactly(self, name: str) -> Expr:
        return self._lexemes.text.exactly(name)

    def key(self, language: Expr, excluded: tuple[str, ...]) -> Expr:
        """Return NOTHING if all names are excluded."""
        unwanted = [n for n in excluded if self._strings.matches(language, n)]
        if self._strings.plain.is_empty(both(language, negate(any_of(unwanted[:_MOST_LOOKED_AT])))):
            return NOTHING
        if not unwanted:
            return self._lexemes.string(language)
        simple = self._strings.plain.simplified(language)
        if simple is None:
            return self._lexemes.string(both(language, negate(any_of(unwanted))))
        return self._lexemes.text.none_of(unwanted, simple)
