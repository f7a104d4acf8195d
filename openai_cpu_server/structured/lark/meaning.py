"""Meaning of clients' Lark, as rules of expressions. Ignored text may stand before and behind every terminal.

A terminal is read greedily, as by every reader of Lark: behind `/[a-z]+/` no letter can follow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from openai_cpu_server.structured.languages.automaton import (
    PlainLanguages,
    build_automaton,
    state_rules,
    to_expr,
)
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    ALL,
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Chars,
    Expr,
    GrammarRules,
    Ref,
    alt,
    both,
    negate,
    rebuilt,
    repeat,
    rewritten,
    seq,
    star,
)
from openai_cpu_server.structured.languages.rewriting import RuleProduct, merged_ways
from openai_cpu_server.structured.lark.plan import Following, Work
from openai_cpu_server.structured.lark.reading import START, LarkGrammar, fail, read_lark
from openai_cpu_server.structured.options import Budget, Limits

_WHOLE = "whole."
"""A dot keeps the name apart from clients' rules."""


def lark_rules(text: str) -> GrammarRules:
    read = read_lark(text)
    terminals = _Terminals(read)
    rules = dict(read.rules)
    skipped = star(alt(*map(Ref, dict.fromkeys(read.ignored))))
    if read.ignored:
        names = {Ref(name) for name in terminals.languages}
        rules = rewritten(rules, lambda expr: seq(expr, skipped) if expr in names else expr)
    rules[_WHOLE] = seq(skipped, Ref(START))
    return _GreedyRules(rules, terminals).rules | terminals.rules


class _Terminals:
    def __init__(self, read: LarkGrammar) -> None:
        self._read = read
        self._open: list[str] = []
        self.languages: dict[str, Expr] = {}
        self._budget = Budget(Limits())
        self._plain = PlainLanguages(self._budget)
        self.rules: GrammarRules = {}
        """States of languages that are too complex for one expression."""
        for name in read.terminals:
            self._language(name)
        self.automaton = functools.cache(lambda name: build_automaton(self.languages[name], self._budget))
        self.first = functools.cache(lambda name: self._after(name, [0]))
        self.restricted = functools.cache(self._restricted)

    def _language(self, name: str) -> Expr:
        if name not in self.languages:
            if name in self._open:
                fail(self._read.places[name], f"the terminal {name!r} names itself")
            self._open.append(name)
            self.languages[name] = self._resolved(self._read.terminals[name])
            self._open.pop()
        return self.languages[name]

    def _resolved(self, expr: Expr) -> Expr:
        if isinstance(expr, Ref):
            return self._language(expr.name)
        if not expr.references:
            return expr
        resolved = rebuilt(expr, [self._resolved(part) for part in expr.parts])
        self._budget.spend("text", len(resolved.parts))  # sequences join, so a terminal can double the last
        return resolved

    def endings(self, name: str, following: CharSet) -> list[tuple[CharSet, Expr]]:
        """Group the texts by the following characters that would continue them."""
        automaton, found = self.automaton(name), dict[CharSet, set[int]]()
        for state in sorted(automaton.accepting):
            found.setdefault(self._after(name, [state]) & following, set()).add(state)
        if len(found) == 1:
            return [(after, self.languages[name]) for after in found]
        parts = {
            after: to_expr(msgspec.structs.replace(automaton, accepting=frozenset(states)))
            for after, states in found.items()
        }
        if None in parts.values():  # then none of the characters may follow any text
            return [(self._after(name, automaton.accepting) & following, self.languages[name])]
        return [(after, language) for after, language in parts.items() if language is not None]

    def _after(self, name: str, states: Iterable[int]) -> CharSet:
        edges = self.automaton(name).edges
        return CharSet.of(*(each for state in states for chars, _ in edges[state] for each in chars.ranges))

    def _restricted(self, language: Expr, forbidden: CharSet) -> Expr:
        parts = [negate(seq(Chars(forbidden), ALL))] if forbidden else []
        parts += [repeat(ANY_CHAR, 1, None)] if language.is_nullable else []
        language = both(language, *parts)
        if self._plain.is_empty(language):
            return NOTHING
        simple = self._plain.simplified(language)
        if simple is not None and not simple.is_extended:
            return simple
        automaton = build_automaton(language, self._budget)
        names = [f"terminal.{len(self.rules)}.{state}" for state in range(len(automaton.edges))]
        self.rules |= state_rules(automaton, names, Chars)
        return Ref(names[0])


class _GreedyRules(RuleProduct[CharSet]):
    """A state is the set of characters that may not follow, because a terminal would read them."""

    def __init__(self, source: GrammarRules, terminals: _Terminals) -> None:
        self._terminals = terminals
        bits = {name: 1 << number for number, name in enumerate(terminals.languages)}

        @functools.cache
        def first_characters(mask: int) -> CharSet:
            firsts = (terminals.first(name) for name in bits if mask & bits[name])
            return CharSet.of(*{each for chars in firsts for each in chars.ranges})

        followers = Following(source, terminals.languages, bits, Work()).result()
        self._following = {name: first_characters(mask) for name, mask in followers.items()}
        self._endings = {name: terminals.endings(name, chars) for name, chars in self._following.items()}
        super().__init__(source, _WHOLE, CharSet(()))

    def _leaf(self, expr: Expr, before: CharSet) -> dict[CharSet, Expr]:
        assert isinstance(expr, Ref), expr
        first = self._terminals.first(expr.name)
        ways: list[dict[CharSet, Expr]] = [
            {after: language}
            for after, whole in self._endings[expr.name]
            if (language := self._terminals.restricted(whole, before & first)) is not NOTHING
        ]
        if self._terminals.languages[expr.name].is_nullable:
            ways.append({before | first & self._following[expr.name]: EMPTY})
        return merged_ways(ways)
