"""Parser of GBNF, with additions to llama.cpp's: `_` in names, `{,n}`, and no limit of 2,000 repetitions.
Of its tokens only `<[302]>` is supported. Unlike there, a rule defined twice, an empty class and a
reversed range are rejected. Both reject left recursion; llama.cpp also counts a repetition of what may be
empty."""

from __future__ import annotations

import enum
import functools
import itertools
import re
from collections.abc import Collection, Iterator

from openai_cpu_server.structured.languages.charset import ANY, MAX, CharSet
from openai_cpu_server.structured.languages.expr import (
    COUNT_MARKS,
    EMPTY,
    ROOT,
    Chars,
    Expr,
    Ref,
    Rules,
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
    """`position`: within the symbol's text."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def decoded_literal(symbol: str) -> str:
    """Decode a literal. Raises WrongCharacter."""
    if "\\" not in symbol and symbol.isascii():
        return symbol[1:-1]
    return "".join(chr(code) for code, _ in _codes(symbol, 1))


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


MOST_CHARACTERS = 600_000
MOST_SYMBOLS = 160_000


class SymbolKind(enum.Enum):
    NEWLINE = "the end of the line"
    NAME = "a rule's name"
    DEFINE = "'::='"
    LITERAL = "a literal"
    CLASS = "a class of characters"
    ANY = "'.'"
    TOKEN = "a token's number"
    OPEN = "'('"
    CLOSE = "')'"
    OR = "'|'"
    REPEAT = "a repetition"
    END = "the end of the grammar"


_SYMBOL = r"""[A-Za-z0-9_-]+ | "(?:[^"\\]|\\.)*" | \[(?:[^\]\\]|\\.)*\]
    | [*+?] | \{[^{}"\[\]()|:]*\} | <\[\d{1,9}\]> | \| | \( | \) | \. | ::= | \r\n | \r | \n"""
_ONE = re.compile(_SYMBOL, re.VERBOSE | re.DOTALL)
_NEXT = re.compile(rf"[ \t]*({_SYMBOL} | \#[^\r\n]* | .*)", re.VERBOSE | re.DOTALL)

_BY_FIRST = {
    **dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", SymbolKind.NAME),
    **dict.fromkeys("*+?{", SymbolKind.REPEAT),
    **dict.fromkeys("\r\n", SymbolKind.NEWLINE),
    '"': SymbolKind.LITERAL,
    "[": SymbolKind.CLASS,
    "(": SymbolKind.OPEN,
    ")": SymbolKind.CLOSE,
    "|": SymbolKind.OR,
    ".": SymbolKind.ANY,
    "<": SymbolKind.TOKEN,
    ":": SymbolKind.DEFINE,
    "": SymbolKind.END,
}
_UNFINISHED = {
    '"': "a literal without its closing '\"'",
    "[": "a class of characters without its closing ']'",
    "{": "a repetition without its closing '}'",
}


class GbnfSymbols:
    """Without spaces and comments. The last one is ""."""

    def __init__(self, text: str) -> None:
        """Split the text. Raises InvalidGrammar."""
        self._text = text
        if len(text) > MOST_CHARACTERS:
            raise self._error_at(MOST_CHARACTERS, f"more than {MOST_CHARACTERS} characters")
        self.texts = [*filter(_is_symbol, _NEXT.findall(text)), ""]
        if len(self.texts) > MOST_SYMBOLS + 1:
            raise self.error(MOST_SYMBOLS, f"more than {MOST_SYMBOLS} symbols")
        self._num_readable = len(self.texts)
        if len(self.texts) > 1 and not _ONE.fullmatch(self.texts[-2]):
            self._num_readable -= 2

    def kind(self, index: int) -> SymbolKind:
        """Classify a symbol. Raises InvalidGrammar if none begins there."""
        if index == self._num_readable:
            raise self._unreadable(index)
        return _BY_FIRST[self.texts[index][:1]]

    def error(self, index: int, message: str, offset: int = 0) -> InvalidGrammar:
        return self._error_at(self._start(index) + offset, message)

    def _start(self, index: int) -> int:
        starts = (found.start(1) for found in _NEXT.finditer(self._text) if _is_symbol(found[1]))
        return next(itertools.islice(starts, index, None), len(self._text))

    def _error_at(self, position: int, message: str) -> InvalidGrammar:
        lines = re.split(r"\r\n|\r|\n", self._text[:position])
        return InvalidGrammar(len(lines), len(lines[-1]) + 1, message)

    def _unreadable(self, index: int) -> InvalidGrammar:
        char = self.texts[index][0]
        if char in _UNFINISHED:
            return self.error(index, _UNFINISHED[char])
        if char in "<!":
            return self.error(index, "tokens (<...>, !<...>) cannot be named here: write their characters")
        return self.error(index, f"{char!r} begins no symbol of a grammar")


def _is_symbol(text: str) -> bool:
    return text[:1] not in ("#", "")


DEEPEST_GROUP = 500
MOST_TIMES = 1_000_000_000
_LIFTED_AT = 6
"""Groups nested this deep become rules, so that no expression is deep."""
_OPERANDS = (SymbolKind.NAME, SymbolKind.LITERAL, SymbolKind.CLASS, SymbolKind.ANY, SymbolKind.TOKEN)


class _Group:
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


def parse_gbnf(text: str, defined_names: Collection[str] = ()) -> Rules:
    """Parse rules; groups that are lifted out have a dot in their names. Raises InvalidGrammar.
    `defined_names`: names of rules that are defined elsewhere."""
    return _Parser(GbnfSymbols(text), defined_names).grammar()


def names_tokens(rules: Rules) -> bool:
    return any(isinstance(expr, Token) for expr in every_expression(rules.values()))


class _Parser:
    def __init__(self, symbols: GbnfSymbols, defined_names: Collection[str]) -> None:
        self._symbols = symbols
        self._defined_elsewhere = defined_names
        self._next = 0
        self._rules: Rules = {}
        self._defined: dict[str, int] = {}
        self._mentioned: dict[str, int] = {}
        self._operands: dict[str, Expr] = {}

    def grammar(self) -> Rules:
        self._skip_lines()
        while self._kind is not SymbolKind.END:
            self._rule()
            self._skip_lines()
        for name, symbol in self._mentioned.items():
            if name not in self._defined and name not in self._defined_elsewhere:
                raise self._symbols.error(symbol, f"there is no rule {name!r}")
        if ROOT not in self._defined:
            raise self._symbols.error(self._next, f"there is no rule {ROOT!r}, where every grammar begins")
        cycle = find_left_recursion(self._rules)
        if cycle:
            named = [name for name in cycle if name in self._defined]
            path = " -> ".join([*named[:8], *(["..."] if len(named) > 8 else []), named[0]])
            message = f"left recursion: {path}; write it as a repetition, or with the recursion last"
            raise self._symbols.error(self._defined[named[0]], message)
        return self._rules

    def _rule(self) -> None:
        name, symbol = self._text, self._next
        self._take(SymbolKind.NAME)
        if name in self._defined:
            raise self._symbols.error(symbol, f"the rule {name!r} is defined already")
        self._defined[name] = symbol
        self._take(SymbolKind.DEFINE)
        self._skip_lines()
        self._rules[name] = self._body(name)

    def _body(self, name: str) -> Expr:
        """Most symbols were met before, and are read by the inner loop."""
        groups = [_Group()]
        lifted = (f"{name}.{number}" for number in itertools.count(1))
        texts, operands, kind_of = self._symbols.texts, self._operands, self._symbols.kind
        while True:
            while (found := operands.get(texts[self._next])) is not None:
                groups[-1].items.append(found)
                self._next += 1
            kind = kind_of(self._next)
            if len(groups) == 1 and kind in (SymbolKind.NEWLINE, SymbolKind.END):
                return groups[0].finish()
            self._part(kind, groups, lifted)

    def _part(self, kind: SymbolKind, groups: list[_Group], lifted: Iterator[str]) -> None:
        group = groups[-1]
        if kind in _OPERANDS:
            self._operands[self._text] = self._made(kind)
            return
        if kind is SymbolKind.OPEN:
            if len(groups) > DEEPEST_GROUP:
                raise self._symbols.error(self._next, f"more than {DEEPEST_GROUP} nested groups")
            groups.append(_Group())
        elif kind is SymbolKind.CLOSE and len(groups) > 1:
            expr = groups.pop().finish()
            if len(groups) >= _LIFTED_AT and expr.depth > 2:
                name = next(lifted)
                self._rules[name] = expr
                expr = Ref(name)
            groups[-1].items.append(expr)
        elif kind is SymbolKind.OR:
            group.next_alternative()
        elif kind is SymbolKind.REPEAT:
            self._repeat(group)
        elif kind is not SymbolKind.NEWLINE:
            raise self._misplaced(kind, in_group=len(groups) > 1)
        self._next += 1
        if kind is SymbolKind.OR:
            self._skip_lines()

    def _repeat(self, group: _Group) -> None:
        if not group.items:
            raise self._symbols.error(self._next, f"nothing stands before {self._text[:20]!r}")
        try:
            counts = COUNT_MARKS.get(self._text) or counts_in_braces(self._text, MOST_TIMES)
        except ValueError as error:
            raise self._symbols.error(self._next, str(error)) from None
        group.items[-1] = repeat(group.items[-1], *counts)

    def _misplaced(self, kind: SymbolKind, *, in_group: bool) -> InvalidGrammar:
        end = "')'" if in_group else "the end of the line"
        message = f"expected a literal, a class, a rule's name, '(', '|' or {end}, not {kind.value}"
        return self._symbols.error(self._next, message)

    def _made(self, kind: SymbolKind) -> Expr:
        if kind is SymbolKind.NAME:
            self._mentioned[self._text] = self._next
            return Ref(self._text)
        if kind is SymbolKind.ANY:
            return Chars(ANY)
        if kind is SymbolKind.TOKEN:
            return Token(int(self._text[2:-2]))
        try:
            if kind is SymbolKind.CLASS:
                return Chars(class_set(self._text))
            text = decoded_literal(self._text)
            return Text(text) if text else EMPTY
        except WrongCharacter as error:
            raise self._symbols.error(self._next, str(error), error.position) from error

    @property
    def _text(self) -> str:
        text: str = self._symbols.texts[self._next]
        return text

    @property
    def _kind(self) -> SymbolKind:
        return self._symbols.kind(self._next)

    def _take(self, wanted: SymbolKind) -> None:
        if self._kind is not wanted:
            raise self._symbols.error(self._next, f"expected {wanted.value}, not {self._kind.value}")
        self._next += 1

    def _skip_lines(self) -> None:
        while self._kind is SymbolKind.NEWLINE:
            self._next += 1
