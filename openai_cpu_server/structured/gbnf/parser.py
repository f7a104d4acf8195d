"""GBNF with `_` in names, `{,n}`, and more than 2,000 repetitions; of tokens only `<[302]>`.

Unlike llama.cpp, it rejects a rule defined twice, an empty class and a reversed range, and allows a
repetition of what may be empty.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import (
    COUNT_MARKS,
    EMPTY,
    ROOT,
    Chars,
    Expr,
    GrammarRules,
    Ref,
    Text,
    Token,
    alt,
    counts_in_braces,
    every_expression,
    repeat,
    seq,
)
from openai_cpu_server.structured.languages.rules import find_left_recursion
from openai_cpu_server.structured.options import InvalidGrammar

_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt\\\"\[\]-])|([^\\])", re.DOTALL
)
_LONGEST_CLASS = 20_000
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_LOWEST_SURROGATE, _HIGHEST_SURROGATE = 0xD800, 0xDFFF


class WrongCharacter(Exception):
    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


@functools.lru_cache(maxsize=1024)
def class_set(text: str) -> CharSet:
    """Parse `[a-z]` or `[^a-z]`. Raises WrongCharacter."""
    if len(text) > _LONGEST_CLASS:
        raise WrongCharacter(_LONGEST_CLASS, f"a class of more than {_LONGEST_CLASS} characters")
    is_negated = text.startswith("[^")
    codes = _codes(text, 2 if is_negated else 1)
    if not codes:
        raise WrongCharacter(0, "a class of characters that names none")
    ranges, i = [], 0
    while i < len(codes):
        low, start = codes[i]
        is_range = i + 2 < len(codes) and text[codes[i + 1][1]] == "-"
        high = codes[i + 2][0] if is_range else low
        if high < low:
            raise WrongCharacter(start, "a range of characters whose end lies before its beginning")
        ranges.append((low, high))
        i += 3 if is_range else 1
    chars = CharSet.of(*ranges)
    return ~chars if is_negated else chars


def _codes(text: str, position: int) -> list[tuple[int, int]]:
    found = []
    end = len(text) - 1
    if "\\" not in text:
        wrong = _SURROGATE.search(text)
        if wrong:
            raise WrongCharacter(wrong.start(), f"there is no character {ord(wrong[0]):#x}")
        return [(ord(text[i]), i) for i in range(position, end)]
    while position < end:
        match = _CHARACTER.match(text, position, end)
        if match is None:
            raise WrongCharacter(position, _wrong_escape(text[position : position + 2]))
        if digits := match[1] or match[2] or match[3]:
            code = int(digits, 16)
        else:
            code = ord(_NAMED.get(match[4], match[4]) if match[4] else match[5])
        if code > MAX or _LOWEST_SURROGATE <= code <= _HIGHEST_SURROGATE:
            raise WrongCharacter(position, f"there is no character {code:#x}")
        found.append((code, position))
        position = match.end()
    return found


def _wrong_escape(written: str) -> str:
    wanted = {"\\x": 2, "\\u": 4, "\\U": 8}
    if written in wanted:
        return f"{written} expects {wanted[written]} hexadecimal digits"
    escapes = '\\n \\r \\t \\\\ \\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH'
    return f"unknown escape {written!r}, expected one of {escapes}"


MOST_GBNF_CHARACTERS = 600_000
MOST_SYMBOLS = 160_000
_KINDS = {
    "name": ("a rule's name", "[A-Za-z0-9_-]+"),
    "literal": ("a literal", r'"(?:[^"\\]|\\.)*"'),
    "class": ("a class of characters", r"\[(?:[^\]\\]|\\.)*\]"),
    "repetition": ("a repetition", r'[*+?]|\{[^{}"\[\]()|:]*\}'),
    "token": ("a token's number", r"<\[\d{1,9}\]>"),
    "or": ("'|'", r"\|"),
    "open": ("'('", r"\("),
    "close": ("')'", r"\)"),
    "any": ("'.'", r"\."),
    "define": ("'::='", "::="),
    "line end": ("the end of the line", "\r\n|\r|\n"),
    "blank": ("", r"[ \t]+|\#[^\r\n]*"),
    "end": ("the end of the grammar", r"\Z"),
}
_SYMBOL = re.compile("|".join(f"({pattern})" for _, pattern in _KINDS.values()), re.DOTALL)
_KIND_BY_GROUP = ("", *_KINDS)
_OPERANDS = ("name", "literal", "class", "any", "token")
_UNFINISHED = {
    '"': "a literal without its closing '\"'",
    "[": "a class of characters without its closing ']'",
    "{": "a repetition without its closing '}'",
    "<": "tokens (<...>, !<...>) cannot be named here: write their characters",
    "!": "tokens (<...>, !<...>) cannot be named here: write their characters",
}


class _Symbol(NamedTuple):
    kind: str
    """Name outside of `_KINDS` if no symbol begins here; then this is the last one."""
    text: str
    position: int


def _symbols(text: str) -> list[_Symbol]:
    if len(text) > MOST_GBNF_CHARACTERS:
        raise _error_at(text, MOST_GBNF_CHARACTERS, f"more than {MOST_GBNF_CHARACTERS} characters")
    found: list[_Symbol] = []
    position, kind = 0, ""
    while kind != "end":
        match = _SYMBOL.match(text, position)
        kind = _KIND_BY_GROUP[match.lastindex or 0] if match else "unreadable"
        if kind not in ("blank", "end") and len(found) == MOST_SYMBOLS:
            raise _error_at(text, position, f"more than {MOST_SYMBOLS} symbols")
        if kind != "blank":
            found.append(_Symbol(kind, match[0] if match else text[position], position))
        if match is None:
            break
        position = match.end()
    return found


def _error_at(text: str, position: int, message: str) -> InvalidGrammar:
    lines = re.split(r"\r\n|\r|\n", text[:position])
    return InvalidGrammar(len(lines), len(lines[-1]) + 1, message)


DEEPEST_GROUP = 500
MOST_TIMES = 1_000_000_000
_LIFTED_AT = 6
"""Depth at which groups become rules, so that no expression is deep."""


_Group = list[list[Expr]]
"""Alternatives, each a row of items."""


def _finished(group: _Group) -> Expr:
    found = [items[0] if len(items) == 1 else seq(*items) for items in group]
    return found[0] if len(found) == 1 else alt(*found)


def parse_gbnf(text: str, defined_names: Collection[str] = ()) -> GrammarRules:
    """Groups that are lifted out have a dot in their names. Raises InvalidGrammar."""
    return _Parser(text, defined_names).grammar()


def names_tokens(rules: GrammarRules) -> bool:
    return any(isinstance(expr, Token) for expr in every_expression(rules.values()))


class _Parser:
    def __init__(self, text: str, defined_names: Collection[str]) -> None:
        self._source = text
        self._symbols = _symbols(text)
        self._defined_elsewhere = defined_names
        self._next = 0
        self._rules: GrammarRules = {}
        self._defined: dict[str, int] = {}
        self._mentioned: dict[str, int] = {}
        self._operands: dict[str, Expr] = {}

    def grammar(self) -> GrammarRules:
        self._skip_lines()
        while self._kind != "end":
            self._rule()
            self._skip_lines()
        for name, symbol in self._mentioned.items():
            if name not in self._defined and name not in self._defined_elsewhere:
                raise self._error(symbol, f"there is no rule {name!r}")
        if ROOT not in self._defined:
            raise self._error(self._next, f"there is no rule {ROOT!r}, where every grammar begins")
        cycle = find_left_recursion(self._rules)
        if cycle:
            named = [name for name in cycle if name in self._defined]
            path = " -> ".join([*named[:8], *(["..."] if len(named) > 8 else []), named[0]])
            message = f"left recursion: {path}; write it as a repetition, or with the recursion last"
            raise self._error(self._defined[named[0]], message)
        return self._rules

    def _rule(self) -> None:
        name, symbol = self._text, self._next
        self._take("name")
        if name in self._defined:
            raise self._error(symbol, f"the rule {name!r} is defined already")
        self._defined[name] = symbol
        self._take("define")
        self._skip_lines()
        self._rules[name] = self._body(name)

    def _body(self, name: str) -> Expr:
        """Most symbols were met before, and are read by the inner loop."""
        groups: list[_Group] = [[[]]]
        lifted = (f"{name}.{number}" for number in itertools.count(1))
        symbols, operands = self._symbols, self._operands
        while True:
            while (found := operands.get(symbols[self._next].text)) is not None:
                groups[-1][-1].append(found)
                self._next += 1
            kind = self._kind
            if len(groups) == 1 and kind in ("line end", "end"):
                return _finished(groups[0])
            self._part(kind, groups, lifted)

    def _part(self, kind: str, groups: list[_Group], lifted: Iterator[str]) -> None:
        if kind in _OPERANDS:
            self._operands[self._text] = self._made(kind)
            return
        if kind == "open":
            if len(groups) > DEEPEST_GROUP:
                raise self._error(self._next, f"more than {DEEPEST_GROUP} nested groups")
            groups.append([[]])
        elif kind == "close" and len(groups) > 1:
            expr = _finished(groups.pop())
            if len(groups) >= _LIFTED_AT and expr.depth > 2:
                name = next(lifted)
                self._rules[name] = expr
                expr = Ref(name)
            groups[-1][-1].append(expr)
        elif kind == "or":
            groups[-1].append([])
        elif kind == "repetition":
            self._repeat(groups[-1][-1])
        elif kind != "line end":
            end = "')'" if len(groups) > 1 else "the end of the line"
            wanted = f"a literal, a class, a rule's name, '(', '|' or {end}"
            raise self._error(self._next, f"expected {wanted}, not {_KINDS[kind][0]}")
        self._next += 1
        if kind == "or":
            self._skip_lines()

    def _repeat(self, items: list[Expr]) -> None:
        if not items:
            raise self._error(self._next, f"nothing stands before {self._text[:20]!r}")
        try:
            counts = COUNT_MARKS.get(self._text) or counts_in_braces(self._text, MOST_TIMES)
        except ValueError as error:
            raise self._error(self._next, str(error)) from None
        items[-1] = repeat(items[-1], *counts)

    def _made(self, kind: str) -> Expr:
        text = self._text
        if kind == "name":
            self._mentioned[text] = self._next
            return Ref(text)
        if kind == "any":
            return Chars(ANY)
        if kind == "token":
            return Token(int(text[2:-2]))
        try:
            if kind == "class":
                return Chars(class_set(text))
            is_plain = "\\" not in text and text.isascii()
            decoded = text[1:-1] if is_plain else "".join(chr(code) for code, _ in _codes(text, 1))
            return Text(decoded) if decoded else EMPTY
        except WrongCharacter as error:
            raise self._error(self._next, str(error), error.position) from error

    @property
    def _text(self) -> str:
        return self._symbols[self._next].text

    @property
    def _kind(self) -> str:
        kind, text, _ = self._symbols[self._next]
        if kind not in _KINDS:
            reason = _UNFINISHED.get(text, f"{text!r} begins no symbol of a grammar")
            raise self._error(self._next, reason)
        return kind

    def _error(self, symbol: int, message: str, offset: int = 0) -> InvalidGrammar:
        return _error_at(self._source, self._symbols[symbol].position + offset, message)

    def _take(self, wanted: str) -> None:
        if self._kind != wanted:
            message = f"expected {_KINDS[wanted][0]}, not {_KINDS[self._kind][0]}"
            raise self._error(self._next, message)
        self._next += 1

    def _skip_lines(self) -> None:
        while self._kind == "line end":
            self._next += 1
