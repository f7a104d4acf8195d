"""What clients' Lark means: which texts match it, as rules of expressions.

A terminal is read as far as it goes, as every reader of Lark does it: behind `/[a-z]+/` no letter can follow.
What is ignored may stand behind every terminal, and at the beginning. Left recursion becomes repetition.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence

from openai_cpu_server.structured.languages.automaton import Automaton, build, state_rules
from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    ALL,
    ANY_CHAR,
    EMPTY,
    NOTHING,
    ROOT,
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Rules,
    Seq,
    alt,
    both,
    every_expression,
    negate,
    rebuilt,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.languages.left_recursion import FILLED, FilledRules, without_left_recursion
from openai_cpu_server.structured.languages.lengths import PlainLanguages
from openai_cpu_server.structured.languages.rules import Nullables, users
from openai_cpu_server.structured.lark.reading import START, LarkGrammar, fail, read_lark
from openai_cpu_server.structured.options import Budget, InvalidGrammar, Limits

MOST_RULES = 6_000
"""Rules that are made of a client's, at most."""
_MOST_UNROLLED = 16
"""Rounds of a repetition that are written out, at most, where each may end in another way."""
_FREE = CharSet(())
_WHOLE = "whole."
"""No rule of a client's has a dot in its name."""


def lark_rules(text: str) -> Rules:
    """The grammar of the texts that match. Raises InvalidGrammar, SchemaTooLarge."""
    read = read_lark(text)
    terminals = _Terminals(read)
    rules = terminals.taken_from(without_left_recursion(read.rules | terminals.languages))
    skipped = star(alt(*map(Ref, dict.fromkeys(read.ignored))))
    if read.ignored:
        rules = {name: _with_ignored(expr, terminals.languages, skipped) for name, expr in rules.items()}
    rules[_WHOLE] = seq(skipped, Ref(START))
    following = _Neighbours(rules, terminals.languages).following()
    made = _GreedyRules(rules, terminals, following).rules | terminals.rules
    return without_left_recursion(made)


def _with_ignored(expr: Expr, terminals: dict[str, Expr], skipped: Expr) -> Expr:
    if isinstance(expr, Ref):
        return seq(expr, skipped) if expr.name in terminals else expr
    return rebuilt(expr, [_with_ignored(part, terminals, skipped) for part in expr.parts])


class _Terminals:
    """The languages of terminals, without references."""

    def __init__(self, read: LarkGrammar) -> None:
        self._read = read
        self._open: list[str] = []
        self.languages: dict[str, Expr] = {}
        self._plain = PlainLanguages(Budget(Limits()))
        self.rules: Rules = {}
        """Rules for the states of those that are too complex for one expression."""
        for name in read.terminals:
            self._language(name)
        self.automaton = functools.cache(self._automaton)
        self.first = functools.cache(self._first)
        self.extending = functools.cache(self._extending)
        self.restricted = functools.cache(self._restricted)

    def taken_from(self, rules: Rules) -> Rules:
        """The rules that are no terminals; new terminals among them become known."""
        own = {name for name in rules if name.rstrip(FILLED) in self._read.terminals}
        self.languages |= {name: rules[name] for name in own}
        return {name: expr for name, expr in rules.items() if name not in own}

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
        return rebuilt(expr, [self._resolved(part) for part in expr.parts]) if expr.references else expr

    def _automaton(self, name: str) -> Automaton:
        return build(self.languages[name], Budget(Limits()))

    def _first(self, name: str) -> CharSet:
        """The characters that it may begin with."""
        return self._after(name, [0])

    def _extending(self, name: str) -> CharSet:
        """The characters that would go on with some text that it matches."""
        return self._after(name, self.automaton(name).accepting)

    def _after(self, name: str, states: Iterable[int]) -> CharSet:
        edges = self.automaton(name).edges
        return CharSet.of(*(each for state in states for chars, _ in edges[state] for each in chars.ranges))

    def _restricted(self, name: str, forbidden: CharSet) -> Expr:
        """Its texts but the empty one that begin with none of these characters."""
        language, first = self.languages[name], self.first(name) & forbidden
        parts = [negate(seq(Chars(first), ALL))] if first else []
        parts += [repeat(ANY_CHAR, 1, None)] if language.is_nullable else []
        return self._written(both(language, *parts)) if parts else self._written(language)

    def _written(self, language: Expr) -> Expr:
        """It without intersections."""
        if self._plain.is_empty(language):
            return NOTHING
        simple = self._plain.simplified(language)
        if simple is not None and not simple.is_extended:
            return simple
        automaton = build(language, Budget(Limits()))
        names = [f"terminal.{len(self.rules)}.{state}" for state in range(len(automaton.edges))]
        self.rules |= state_rules(automaton, names, Chars)
        return Ref(names[0])


class _Neighbours:
    """Which terminals may stand behind which."""

    def __init__(self, rules: Rules, languages: Mapping[str, Expr]) -> None:
        self._rules = rules
        self._nullable = Nullables({**rules, **languages})
        self._first: dict[str, frozenset[str]] = {}
        self._last: dict[str, frozenset[str]] = {}
        self._fill(self._first, 1)
        self._fill(self._last, -1)

    def _fill(self, known: dict[str, frozenset[str]], step: int) -> None:
        users_of, waiting = users(self._rules), dict.fromkeys(self._rules)
        while waiting:
            name = next(iter(waiting))
            del waiting[name]
            found = self._ends(self._rules[name], known, step)
            if found != known.get(name, frozenset()):
                known[name] = found
                waiting |= dict.fromkeys(users_of.get(name, ()))

    def _ends(self, expr: Expr, known: Mapping[str, frozenset[str]], step: int) -> frozenset[str]:
        """The terminals that its texts begin with, or end with where `step` is -1."""
        if isinstance(expr, Ref):
            return known.get(expr.name, frozenset()) if expr.name in self._rules else frozenset((expr.name,))
        parts = list(expr.parts)[::step]
        if isinstance(expr, Seq):
            end = next((at for at, item in enumerate(parts) if item not in self._nullable), len(parts))
            parts = parts[: end + 1]
        return frozenset().union(*(self._ends(item, known, step) for item in parts))

    def following(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for expr in every_expression(self._rules.values()):
            if isinstance(expr, Seq):
                self._pair(expr.items, found)
            elif isinstance(expr, Repeat) and expr.high != 1:
                self._pair((expr.item, expr.item), found)
        return found

    def _pair(self, items: Sequence[Expr], found: dict[str, set[str]]) -> None:
        for at, item in enumerate(items):
            for name in self._ends(item, self._last, -1):
                found.setdefault(name, set()).update(self._ends(seq(*items[at + 1 :]), self._first, 1))


_Ways = dict[CharSet, Expr]
"""Texts of an expression, by the characters that may not follow them."""
_Key = tuple[str, CharSet]
"""A rule, and the characters that may not follow what stands before it."""


class _GreedyRules:
    """Rules for each rule of a grammar, by what stands before it and by what may not follow it."""

    def __init__(
        self, source: Rules, terminals: _Terminals, following: Mapping[str, Collection[str]]
    ) -> None:
        """`source`: references to rules and terminals, from the rule `_WHOLE` on. `following`: the terminals
        that may stand behind each. Raises InvalidGrammar."""
        self._source = source
        self._terminals = terminals
        self._known: dict[_Key, _Ways] = {}
        self._users: dict[_Key, dict[_Key, None]] = {}
        self._waiting: dict[_Key, None] = {}
        self._names: dict[tuple[_Key, CharSet], str] = {}
        self._after = {name: self._clashing(name, following.get(name, ())) for name in terminals.languages}
        self._here = (_WHOLE, _FREE)
        self._of_rule(self._here)
        self._spread()

    def _clashing(self, name: str, following: Collection[str]) -> CharSet:
        """The characters that may not follow it, of those with which what may stand there begins."""
        firsts = {first for other in following for first in self._terminals.first(other).ranges}
        return self._terminals.extending(name) & CharSet.of(*firsts)

    @property
    def rules(self) -> Rules:
        found = {
            self._name(key, after): expr for key, ways in self._known.items() for after, expr in ways.items()
        }
        ends = self._known[_WHOLE, _FREE]
        return {ROOT: alt(*(Ref(self._name((_WHOLE, _FREE), after)) for after in ends)), **found}

    def _spread(self) -> None:
        """Look at rules again until they end in no new way."""
        while self._waiting:
            self._here = key = next(iter(self._waiting))
            del self._waiting[key]
            before, found = self._known[key], self._ways(self._source[key[0]], key[1])
            self._known[key] = found
            if found.keys() > before.keys():
                self._waiting |= self._users[key]
            if len(self._names) + len(self._known) > MOST_RULES:
                raise InvalidGrammar(
                    1, 1, f"too large: more than {MOST_RULES} rules, each counted for each way to read it"
                )

    def _of_rule(self, key: _Key) -> _Ways:
        self._users.setdefault(key, {})[self._here] = None
        if key not in self._known:
            self._known[key] = {}
            self._waiting[key] = None
        return {after: Ref(self._name(key, after)) for after in self._known[key]}

    def _name(self, key: _Key, after: CharSet) -> str:
        number = len(self._names)
        return self._names.setdefault((key, after), f"{key[0].strip('_.')}.{number}")

    def _ways(self, expr: Expr, before: CharSet) -> _Ways:
        if isinstance(expr, Ref):
            is_rule = expr.name in self._source
            return self._of_rule((expr.name, before)) if is_rule else self._terminal(expr.name, before)
        if isinstance(expr, Alt):
            return _merged(self._ways(item, before) for item in expr.items)
        if isinstance(expr, Repeat):
            return self._rounds(expr, before)
        assert isinstance(expr, Seq), expr
        found: _Ways = {before: EMPTY}
        for item in expr.items:
            found = self._behind(found, item)
        return found

    def _behind(self, ways: _Ways, item: Expr) -> _Ways:
        return _merged(
            {after: seq(begun, expr) for after, expr in self._ways(item, before).items()}
            for before, begun in ways.items()
        )

    def _rounds(self, expr: Repeat, before: CharSet) -> _Ways:
        item, low, high = expr.item, expr.low, expr.high
        nothing: _Ways = {before: EMPTY} if low == 0 else {}
        first = self._ways(item, before)
        if high == 1:
            return _merged([nothing, first])
        if len(first) <= 1:
            after = next(iter(first), before)
            others = self._ways(item, after)
            if others.keys() <= {after}:
                more = repeat(others.get(after, NOTHING), max(low - 1, 0), None if high is None else high - 1)
                if after == before and low == 0:
                    return {after: repeat(others.get(after, NOTHING), 0, high)}
                return _merged([nothing, *({after: seq(start, more)} for start in first.values())])
        return self._written_out(expr, before)

    def _written_out(self, expr: Repeat, before: CharSet) -> _Ways:
        """Rounds that may end in several ways."""
        item, low, high = expr.item, expr.low, expr.high
        if max(low, high or 0) > _MOST_UNROLLED:
            place = f"{{{low},{high or ''}}}"
            raise InvalidGrammar(
                1, 1, f"a repetition {place} whose rounds may end in several ways is too long"
            )
        found: _Ways = {before: EMPTY}
        for _ in range(low):
            found = self._behind(found, item)
        if high is None:
            again = f"again.{item.serial}"
            self._source[again] = alt(EMPTY, seq(self._filled(item), Ref(again)))
            return self._behind(found, Ref(again))
        ends = [found]
        for _ in range(low, high):
            found = self._behind(found, item)
            ends.append(found)
        return _merged(ends)

    def _filled(self, item: Expr) -> Expr:
        """What is repeated, without the empty text."""
        made = FilledRules({**self._source, **self._terminals.languages})
        found = made.filled(item)
        self._source |= self._terminals.taken_from(made.rules)
        return found

    def _terminal(self, name: str, before: CharSet) -> _Ways:
        language = self._terminals.restricted(name, before & self._terminals.first(name))
        after = self._after[name.rstrip(FILLED)]
        ways: _Ways = {} if language is NOTHING else {after: language}
        is_nullable = self._terminals.languages[name].is_nullable
        return _merged([ways, {before | after: EMPTY}]) if is_nullable else ways


def _merged(all_ways: Iterable[_Ways]) -> _Ways:
    found: dict[CharSet, list[Expr]] = {}
    for ways in all_ways:
        for after, expr in ways.items():
            found.setdefault(after, []).append(expr)
    return {after: alt(*exprs) for after, exprs in found.items()}
