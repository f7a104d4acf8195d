"""Reads GBNF text into expressions, one for each rule, and checks all of them together.

llama.cpp's language, with three additions: `_` in names, `{,n}`, and no limit of 2,000 repetitions. Of its
tokens only `<[302]>` is known, a control token by its number. As there,
a rule ends with its line, but not within parentheses nor behind `::=` and `|`. Refused, though taken there: a
rule defined twice, an empty class, a range that runs backwards. Left recursion is refused by both; a
repetition of what may be empty is left recursion for llama.cpp, but not here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator

from openai_cpu_server.structured.errors import InvalidGrammar
from openai_cpu_server.structured.gbnf.characters import WrongCharacter, class_set, literal_text
from openai_cpu_server.structured.gbnf.left_recursion import find_left_recursion
from openai_cpu_server.structured.gbnf.symbols import Kind, Symbols
from openai_cpu_server.structured.languages.charset import ANY
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    ROOT,
    Chars,
    Expr,
    Ref,
    Rules,
    Text,
    Token,
    alt,
    every_expression,
    repeat,
    seq,
)

DEEPEST_GROUP = 500
MOST_TIMES = 1_000_000_000
_LIFTED_AT = 6
"""Groups nested this deep become rules of their own, so that no expression is deep."""
_COUNTS = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")
_OPERANDS = (Kind.NAME, Kind.LITERAL, Kind.CLASS, Kind.ANY, Kind.TOKEN)
_SHORT = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Group:
    """An open parenthesis, or the rule itself. It collects alternatives."""

    __slots__ = ("alternatives", "items")

    def __init__(self) -> None:
        self.alternatives: list[Expr] = []
        self.items: list[Expr] = []

    def next_alternative(self) -> None:
        items = self.items
        self.alternatives.append(items[0] if len(items) == 1 else seq(*items))
        self.items = []

    def finish(self) -> Expr:
        self.next_alternative()
        found = self.alternatives
        return found[0] if len(found) == 1 else alt(*found)


def parse_gbnf(text: str, known: Collection[str] = ()) -> Rules:
    """The rules of a grammar; one whose name has a dot is a group of the text, lifted out of its rule.
    `known`: names of rules that stand elsewhere, and refer to none of the text. Raises InvalidGrammar."""
    return _Parser(Symbols(text), known).grammar()


def names_tokens(rules: Rules) -> bool:
    """Whether a grammar names control tokens."""
    return any(isinstance(expr, Token) for expr in every_expression(rules.values()))


class _Parser:
    """Reads the symbols one by one. It stores symbols by their numbers."""

    def __init__(self, symbols: Symbols, known: Collection[str]) -> None:
        self._symbols = symbols
        self._known = known
        self._next = 0
        self._rules: Rules = {}
        self._defined: dict[str, int] = {}
        self._mentioned: dict[str, int] = {}
        self._operands: dict[str, Expr] = {}

    def grammar(self) -> Rules:
        self._skip_lines()
        while self._kind is not Kind.END:
            self._rule()
            self._skip_lines()
        self._check()
        return self._rules

    def _check(self) -> None:
        for name, symbol in self._mentioned.items():
            if name not in self._defined and name not in self._known:
                raise self._symbols.error(symbol, f"there is no rule {name!r}")
        if ROOT not in self._defined:
            raise self._symbols.error(self._next, f"there is no rule {ROOT!r}, where every grammar begins")
        cycle = find_left_recursion(self._rules)
        if cycle:
            named = [name for name in cycle if name in self._defined]
            path = " -> ".join([*named[:8], *(["..."] if len(named) > 8 else []), named[0]])
            message = f"left recursion: {path}; write it as a repetition, or with the recursion last"
            raise self._symbols.error(self._defined[named[0]], message)

    def _rule(self) -> None:
        name, symbol = self._text, self._next
        self._take(Kind.NAME)
        if name in self._defined:
            raise self._symbols.error(symbol, f"the rule {name!r} is defined already")
        self._defined[name] = symbol
        self._take(Kind.DEFINE)
        self._skip_lines()
        self._rules[name] = self._body(name)

    def _body(self, name: str) -> Expr:
        """Read a rule's body. The inner loop reads symbols that were met before, which most are."""
        groups = [_Group()]
        lifted = (f"{name}.{number}" for number in itertools.count(1))
        texts, operands, kind_of = self._symbols.texts, self._operands, self._symbols.kind
        while True:
            while (found := operands.get(texts[self._next])) is not None:
                groups[-1].items.append(found)
                self._next += 1
            kind = kind_of(self._next)
            if len(groups) == 1 and kind in (Kind.NEWLINE, Kind.END):
                return groups[0].finish()
            self._part(kind, groups, lifted)

    def _part(self, kind: Kind, groups: list[_Group], lifted: Iterator[str]) -> None:
        group = groups[-1]
        if kind in _OPERANDS:
            self._operands[self._text] = self._made(kind)
            return
        if kind is Kind.OPEN:
            self._open(groups)
        elif kind is Kind.CLOSE and len(groups) > 1:
            self._close(groups, lifted)
        elif kind is Kind.OR:
            group.next_alternative()
        elif kind is Kind.REPEAT:
            self._repeat(group)
        elif kind is not Kind.NEWLINE:
            raise self._misplaced(kind, in_group=len(groups) > 1)
        self._next += 1
        if kind is Kind.OR:
            self._skip_lines()

    def _open(self, groups: list[_Group]) -> None:
        if len(groups) > DEEPEST_GROUP:
            raise self._symbols.error(self._next, f"more than {DEEPEST_GROUP} nested groups")
        groups.append(_Group())

    def _close(self, groups: list[_Group], lifted: Iterator[str]) -> None:
        expr = groups.pop().finish()
        if len(groups) >= _LIFTED_AT and expr.depth > 2:
            name = next(lifted)
            self._rules[name] = expr
            expr = Ref(name)
        groups[-1].items.append(expr)

    def _repeat(self, group: _Group) -> None:
        if not group.items:
            raise self._symbols.error(self._next, f"nothing stands before {self._text[:20]!r}")
        low, high = self._counts()
        group.items[-1] = repeat(group.items[-1], low, high)

    def _counts(self) -> tuple[int, int | None]:
        if self._text in _SHORT:
            return _SHORT[self._text]
        match = _COUNTS.fullmatch(self._text)
        if match is None or not (match[1] or match[3]):
            raise self._symbols.error(self._next, "expected {m}, {m,}, {,n} or {m,n}")
        low = self._count(match[1] or "0")
        high = self._count(match[3]) if match[3] else None if match[2] else low
        if high is not None and high < low:
            raise self._symbols.error(self._next, f"at least {low} and at most {high} times")
        return low, high

    def _count(self, digits: str) -> int:
        if len(digits.lstrip("0")) > len(str(MOST_TIMES)) or int(digits) > MOST_TIMES:
            raise self._symbols.error(self._next, f"more than {MOST_TIMES} repetitions")
        return int(digits)

    def _misplaced(self, kind: Kind, *, in_group: bool) -> InvalidGrammar:
        end = "')'" if in_group else "the end of the line"
        message = f"expected a literal, a class, a rule's name, '(', '|' or {end}, not {kind.value}"
        return self._symbols.error(self._next, message)

    def _made(self, kind: Kind) -> Expr:
        if kind is Kind.NAME:
            self._mentioned[self._text] = self._next
            return Ref(self._text)
        if kind is Kind.ANY:
            return Chars(ANY)
        if kind is Kind.TOKEN:
            return Token(int(self._text[2:-2]))
        try:
            return _of_literal(self._text) if kind is Kind.LITERAL else Chars(class_set(self._text))
        except WrongCharacter as error:
            raise self._symbols.error(self._next, str(error), error.position) from error

    @property
    def _text(self) -> str:
        text: str = self._symbols.texts[self._next]
        return text

    @property
    def _kind(self) -> Kind:
        return self._symbols.kind(self._next)

    def _take(self, wanted: Kind) -> None:
        if self._kind is not wanted:
            raise self._symbols.error(self._next, f"expected {wanted.value}, not {self._kind.value}")
        self._next += 1

    def _skip_lines(self) -> None:
        while self._kind is Kind.NEWLINE:
            self._next += 1


def _of_literal(symbol: str) -> Expr:
    text = literal_text(symbol)
    return Text(text) if text else EMPTY
