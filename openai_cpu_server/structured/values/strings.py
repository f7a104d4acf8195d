"""Strings, numbers and names of properties: their languages, and how these become lexemes of a grammar."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from itertools import combinations, takewhile

import msgspec

from openai_cpu_server.structured.languages.automaton import (
    Automaton,
    Deriver,
    build,
    few_strings,
    is_empty,
    to_expr,
)
from openai_cpu_server.structured.languages.charset import ANY, CharSet, single
from openai_cpu_server.structured.languages.expr import (
    ALL,
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Expr,
    Ref,
    Repeat,
    Seq,
    Text,
    alt,
    any_of,
    both,
    negate,
    optional,
    seq,
)
from openai_cpu_server.structured.languages.lengths import bounded, not_shorter, span, weight, within
from openai_cpu_server.structured.logic.goals import Branch, Goal, Goals, limits_of
from openai_cpu_server.structured.options import Budget, Limits
from openai_cpu_server.structured.scalars.regex import FORMATS, LIMITED, full_language, search_language
from openai_cpu_server.structured.schema.nodes import Format, JsonKind, Length, Pattern, Scalars
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.json_text import JsonText

_COUNTED = 24
"""A limit on a pattern's length is exact up to so many characters."""
_SHORT = 12
"""Strings of a pattern are listed if none is longer."""
_MOST_STATES = 250
"""The most states of an automaton that counts characters."""


class StringLanguages:
    """Finds the languages of string branches. Patterns are compiled once."""

    def __init__(self, goals: Goals, budget: Budget) -> None:
        self._goals = goals
        self._budget = budget
        self.pattern = functools.cache(lambda pattern: search_language(pattern, budget.limits))
        self.automaton = functools.cache(functools.partial(build, budget=budget))
        self._simple: dict[Expr, Expr | None] = {}
        self._empty: dict[Expr, bool] = {}
        self._deriver = Deriver(budget)

    def language(self, branch: Branch) -> Expr:
        """The strings that fit all facts; listed ones are filtered here."""
        if any(isinstance(f.node, Scalars) and f.is_true for f in branch):
            return any_of(self.listed(branch))
        low, high = limits_of(branch, Length)
        return bounded(both(*self._parts(branch)), low, high)

    def listed(self, branch: Branch) -> list[str]:
        """The values of an `enum` that fit the other facts."""
        lists = [f.node.strings for f in branch if isinstance(f.node, Scalars) and f.is_true]
        common = [x for x in lists[0] if all(x in other for other in map(set, lists[1:]))]
        low, high = limits_of(branch, Length)
        parts = self._parts(branch)
        return [x for x in common if self._fits(x, parts, low, high)]

    def _parts(self, branch: Branch) -> list[Expr]:
        """The languages of the facts, except lengths and lists."""
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

    def matches(self, language: Expr, text: str) -> bool:
        return self._deriver.matches(language, text)

    def of_goal(self, goal: Goal) -> Expr:
        """All strings that fit a goal."""
        languages = [self.language(b) for b in self._goals.branches(goal, JsonKind.STRING)]
        return ALL if ALL in languages else alt(*languages)

    def is_empty(self, language: Expr) -> bool:
        if not language.is_extended:
            return language is NOTHING
        if language not in self._empty:
            clash = isinstance(language, And) and _starts_clash(language)
            is_found = not clash and _without_counting(language) not in (None, NOTHING)
            self._empty[language] = clash or (not is_found and is_empty(language, self._budget))
        return self._empty[language]

    def few(self, language: Expr, most: int) -> list[str] | None:
        """All strings of the language, if they are short and at most so many; else None."""
        longest = span(language)[1]
        if longest is None or longest > _SHORT:
            return None
        return few_strings(self.automaton(language), most)

    def simplified(self, language: Expr) -> Expr | None:
        """The expression without intersections and complements; None if that would be too long."""
        if not language.is_extended:
            return language
        if language not in self._simple:
            found = _without_counting(language)
            self._simple[language] = to_expr(self.automaton(language)) if found is None else found
        return self._simple[language]


@functools.lru_cache(maxsize=len(FORMATS))
def _format_language(name: str) -> Expr:
    """A format's language. It is the same for every schema, so it is compiled once."""
    return full_language(FORMATS[name], Limits())


@functools.lru_cache(maxsize=1)
def _limited_formats() -> dict[Expr, Expr]:
    """The languages that replace formats where lengths are limited."""
    return {_format_language(name): full_language(LIMITED[name], Limits()) for name in LIMITED}


def _starts_clash(language: And) -> bool:
    """Whether two parts begin with different characters, which needs no automaton."""
    starts = [_start(x) for x in language.items]
    return any(not a & b for one, other in combinations(starts, 2) for a, b in zip(one, other, strict=False))


def _start(expr: Expr) -> list[CharSet]:
    """The characters with which every string begins, as far as that is plain."""
    parts = expr.items if isinstance(expr, Seq) else (expr,)
    return [x.set for x in takewhile(lambda x: isinstance(x, Chars), parts) if isinstance(x, Chars)]


def _without_counting(language: Expr) -> Expr | None:
    """Most strings of a plain language within these lengths, where an automaton would have to count far."""
    if not isinstance(language, And) or len(language.items) != 2:
        return None
    body, length = language.items
    if not isinstance(length, Repeat) or length.item is not ANY_CHAR or body.is_extended:
        return None
    is_limited = length.high is not None and length.high > _COUNTED and length.low <= span(body)[0]
    counted = length.low if length.high is None else length.high
    if not is_limited and weight(body) * counted <= _MOST_STATES:
        return None
    least, most = span(body)
    if most is None or length.low > least:
        body = _limited_formats().get(body, body)
    found = not_shorter(body, length.low)
    return found if length.high is None else within(found, length.high)


class ScalarLexemes:
    def __init__(self, grammar: GrammarBuilder, strings: StringLanguages) -> None:
        self.grammar = grammar
        self.text = JsonText(grammar)
        self._strings = strings

    def string(self, language: Expr) -> Expr:
        """The strings of a language, with quotes."""
        simple = self._strings.simplified(language)
        if simple is not None:
            return self.text.string(simple)
        return seq(Text('"'), self._by_states(language, "text"), Text('"'))

    def number(self, language: Expr, hint: str) -> Expr:
        simple = self._strings.simplified(language)
        return self._by_states(language, hint) if simple is None else self.grammar.define(hint, simple)

    def _by_states(self, language: Expr, hint: str) -> Expr:
        automaton = self._strings.automaton(language)
        return by_states(automaton, self.grammar, hint, lambda chars: self.text.content(Chars(chars)))


def by_states(
    automaton: Automaton, grammar: GrammarBuilder, hint: str, written: Callable[[CharSet], Expr]
) -> Expr:
    """A rule for each state of the automaton, which is slower to
    run than one lexeme but short to write. `written` gives the text of one character."""
    names = [grammar.reserve(hint) for _ in automaton.edges]
    for state, edges in enumerate(automaton.edges):
        options = [seq(written(chars), Ref(names[to])) for chars, to in edges]
        ends = [EMPTY] if state in automaton.accepting else []
        grammar.set(names[state], alt(*ends, *options))
    return Ref(names[0])


_Trie = dict[str, "_Trie"]
_END = ""
_LEVELS = 9
"""After so many characters a name goes on in a rule of its own, because groups must not nest too deep."""
_WORTH_A_RULE = 4
"""The fewest characters of a part that is written as a rule if it is needed twice."""


class _Part(msgspec.Struct, frozen=True):
    """What may follow a node of a trie. Nodes below which the tries are equal have equal numbers."""

    number: int
    expr: Expr
    size: int


class NameKeys:
    def __init__(self, strings: StringLanguages, lexemes: ScalarLexemes) -> None:
        self._strings = strings
        self._lexemes = lexemes
        self._others: dict[tuple[str, ...], Expr] = {}
        self._ways: dict[str, Expr] = {}
        self._parts: dict[tuple[object, ...], _Part] = {}

    def exactly(self, name: str) -> Expr:
        return self._lexemes.text.exactly(name)

    def key(self, language: Expr, excluded: tuple[str, ...]) -> Expr:
        """The strings of a language without `excluded`, with quotes. NOTHING if there are none."""
        if language is ALL:
            return self._all_but(excluded)
        unwanted = [n for n in excluded if self._strings.matches(language, n)]
        if unwanted:
            language = both(language, negate(any_of(unwanted)))
        if self._strings.is_empty(language):
            return NOTHING
        return self._lexemes.string(language)

    def _all_but(self, excluded: tuple[str, ...]) -> Expr:
        """Every string except these: a trie with ways out of it at each character.
        It is faster than an automaton."""
        names = tuple(sorted(excluded))
        if not names:
            return self._lexemes.string(ALL)
        if names not in self._others:
            content = self._none_of_names(_trie(names))
            self._others[names] = self._lexemes.grammar.define("string", seq(Text('"'), content, Text('"')))
        return self._others[names]

    def _none_of_names(self, root: _Trie) -> Expr:
        """What may follow a prefix in the trie, so that the whole is none of its names."""
        done: dict[int, _Part] = {}
        stack = [(root, 0)]
        while stack:
            node, depth = stack[-1]
            waiting = [target for _, target in _edges(node) if id(target) not in done]
            if waiting:
                stack += [(target, depth + 1) for target in waiting]
            elif id(stack.pop()[0]) not in done:
                is_cut = depth % _LEVELS == _LEVELS - 1
                done[id(node)] = self._part(node, done, is_cut)
        return done[id(root)].expr

    def _part(self, node: _Trie, done: dict[int, _Part], is_cut: bool) -> _Part:
        """A node of the trie. If an equal one was met before, in whatever trie, both have one rule."""
        edges = [(label, done[id(target)]) for label, target in _edges(node)]
        key = (_END in node, *((label, part.number) for label, part in edges))
        known = self._parts.get(key)
        if known is None:
            size = 1 + sum(len(label) + part.size for label, part in edges)
            expr = self._ways_out(_END in node, edges)
            number = len(self._parts)
            part = _Part(number, self._lexemes.grammar.define("name", expr) if is_cut else expr, size)
        elif known.size < _WORTH_A_RULE:
            return known
        else:
            part = _Part(known.number, self._lexemes.grammar.define("name", known.expr), known.size)
        self._parts[key] = part
        return part

    def _ways_out(self, is_name: bool, edges: list[tuple[str, _Part]]) -> Expr:
        """The ways to go on: end here (unless a name does), another character, or a known one and so on."""
        options = [] if is_name else [EMPTY]
        options.append(self._another_character("".join(label[0] for label, _ in edges)))
        for label, part in edges:
            options += [self._left_at(label, i) for i in range(1, len(label))]
            options.append(seq(self._spelt(label), part.expr))
        return Alt(tuple(options)) if len(options) > 1 else options[0]

    def _left_at(self, label: str, index: int) -> Expr:
        """The label's beginning up to a place, and perhaps another character than the label has there."""
        return seq(self._spelt(label[:index]), optional(self._another_character(label[index])))

    def _spelt(self, label: str) -> Expr:
        if label.isascii() and label.isprintable():
            return Text(json.dumps(label)[1:-1])
        return seq(*(self._lexemes.text.content(Chars(single(ord(char)))) for char in label))

    def _another_character(self, known: str) -> Expr:
        """Any character except these, then anything. It is a rule, because it is needed often."""
        if known not in self._ways:
            text = self._lexemes.text
            way = seq(text.content(Chars(_all_but(known))), text.content(ALL))
            self._ways[known] = self._lexemes.grammar.define("other", way)
        return self._ways[known]


@functools.lru_cache(maxsize=4096)
def _all_but(known: str) -> CharSet:
    return ANY - CharSet.chars(known)


def _trie(names: tuple[str, ...]) -> _Trie:
    """Characters -> tries; `_END` marks where a name ends."""
    root: _Trie = {}
    for name in names:
        node = root
        for char in name:
            node = node.setdefault(char, {})
        node[_END] = {}
    return root


def _edges(node: _Trie) -> list[tuple[str, _Trie]]:
    """The ways down to the next nodes at which names end or part, with what is read on the way."""
    found = []
    for char, child in node.items():
        label, target = char, child
        while len(target) == 1 and _END not in target:
            step, target = next(iter(target.items()))
            label += step
        if char != _END:
            found.append((label, target))
    return found
