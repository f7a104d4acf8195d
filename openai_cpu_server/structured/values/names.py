"""Names of properties that the schema does not list -> grammar of their keys."""

from __future__ import annotations

import functools
import json

import msgspec

from openai_cpu_server.structured.languages.charset import ANY, CharSet, single
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Expr,
    Text,
    any_of,
    both,
    negate,
    optional,
    seq,
)
from openai_cpu_server.structured.values.lexemes import Lexemes
from openai_cpu_server.structured.values.strings import Strings

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


class Names:
    def __init__(self, strings: Strings, lexemes: Lexemes) -> None:
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
            content = self._outside(_trie(names))
            self._others[names] = self._lexemes.defined("string", seq(Text('"'), content, Text('"')))
        return self._others[names]

    def _outside(self, root: _Trie) -> Expr:
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
            part = _Part(number, self._lexemes.defined("name", expr) if is_cut else expr, size)
        elif known.size < _WORTH_A_RULE:
            return known
        else:
            part = _Part(known.number, self._lexemes.defined("name", known.expr), known.size)
        self._parts[key] = part
        return part

    def _ways_out(self, is_name: bool, edges: list[tuple[str, _Part]]) -> Expr:
        """The ways to go on: end here (unless a name does), another character, or a known one and so on."""
        options = [] if is_name else [EMPTY]
        options.append(self._astray("".join(label[0] for label, _ in edges)))
        for label, part in edges:
            options += [self._leaving(label, i) for i in range(1, len(label))]
            options.append(seq(self._spelt(label), part.expr))
        return Alt(tuple(options)) if len(options) > 1 else options[0]

    def _leaving(self, label: str, index: int) -> Expr:
        """The label's beginning up to a place, and perhaps another character than the label has there."""
        return seq(self._spelt(label[:index]), optional(self._astray(label[index])))

    def _spelt(self, label: str) -> Expr:
        if label.isascii() and label.isprintable():
            return Text(json.dumps(label)[1:-1])
        return seq(*(self._lexemes.text.content(Chars(single(ord(char)))) for char in label))

    def _astray(self, known: str) -> Expr:
        """Any character except these, then anything. It is a rule, because it is needed often."""
        if known not in self._ways:
            text = self._lexemes.text
            way = seq(text.content(Chars(_all_but(known))), text.content(ALL))
            self._ways[known] = self._lexemes.defined("other", way)
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
