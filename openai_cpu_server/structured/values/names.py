"""Names of properties that the schema does not list -> grammar of their keys."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from openai_cpu_server.structured.languages.charset import ANY, CharSet, single
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Expr,
    Seq,
    Text,
    any_of,
    both,
    negate,
    seq,
)
from openai_cpu_server.structured.values.lexemes import Lexemes
from openai_cpu_server.structured.values.strings import Strings

_Trie = dict[str, "_Trie"]
_END = ""
_LEVELS = 9
"""After so many characters a name goes on in a rule of its own, because groups must not nest too deep."""
_WORTH_A_RULE = 3
"""The fewest nodes of a part that is written as a rule if it is needed twice."""


@dataclass(frozen=True)
class _Part:
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
        self._parts: dict[tuple[tuple[str, int], ...], _Part] = {}

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
            waiting = [child for char, child in node.items() if char != _END and id(child) not in done]
            if waiting:
                stack += [(child, depth + 1) for child in waiting]
            elif id(stack.pop()[0]) not in done:
                is_cut = depth % _LEVELS == _LEVELS - 1
                done[id(node)] = self._part(node, done, is_cut)
        return done[id(root)].expr

    def _part(self, node: _Trie, done: dict[int, _Part], is_cut: bool) -> _Part:
        """A node of the trie. If an equal one was met before, in whatever trie, both have one rule."""
        key = tuple((char, done[id(child)].number if char else 0) for char, child in node.items())
        size = 1 + sum(done[id(child)].size for child in node.values() if id(child) in done)
        known = self._parts.get(key)
        if known is None:
            expr = self._ways_out(node, done)
            part = _Part(len(self._parts), self._lexemes.defined("name", expr) if is_cut else expr, size)
        elif size < _WORTH_A_RULE:
            return known
        else:
            part = _Part(known.number, self._lexemes.defined("name", known.expr), size)
        self._parts[key] = part
        return part

    def _ways_out(self, node: _Trie, done: dict[int, _Part]) -> Expr:
        """The ways to go on: end here (unless a name does), another character, or a known one and so on."""
        text = self._lexemes.text
        options = [] if _END in node else [EMPTY]
        options.append(self._astray("".join(node)))
        for char, child in node.items():
            if char != _END:
                options.append(Seq((text.content(Chars(single(ord(char)))), done[id(child)].expr)))
        return Alt(tuple(options)) if len(options) > 1 else options[0]

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
