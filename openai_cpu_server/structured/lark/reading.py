"""Parser of clients' Lark. Templates, `%declare`, `%extend`, `%override` and what only llguidance has are
rejected by name.

Aliases, priorities and marks for trees (`?`, `!`, `-> name`) do not change which texts match.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import msgspec

from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import (
    COUNT_MARKS,
    Chars,
    Expr,
    Ref,
    alt,
    counts_in_braces,
    every_expression,
    literal,
    optional,
    rebuilt,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import InvalidGrammar, InvalidPattern, Limits
from openai_cpu_server.structured.scalars.regex import rust_language
from openai_cpu_server.structured.scalars.regex_parser import either_case

START = "start"
MOST_LARK_CHARACTERS = 100_000
_MOST_RULES, _MOST_TERMINALS = 2_000, 1_000
_MOST_IGNORED = 32
"""Expressions after `%ignore`, each of which may follow each other: 99 took a second."""
_MOST_RANGES = 20_000
r"""Ranges in all regular expressions; `\p{L}` has 600."""
_MOST_TIMES = 100_000
_DEEPEST = 50
_KINDS = {
    "space": r"[ \t]+",
    "line": r"(?:\r?\n|\r)[ \t]*",
    "comment": r"(?://|\#)[^\n]*",
    "special": r"<\[?[^<>\s\"/]*>",
    "text": r'"(?:[^"\\\n]|\\.)*"i?',
    "regex": r"/(?!/)(?:[^/\\\n]|\\.)*/[a-zA-Z]*",
    "rule": r"_?[a-z][_a-z0-9]*",
    "terminal": r"_?[A-Z][_A-Z0-9]*",
    "directive": r"%[a-z_]+",
    "number": r"[+-]?\d+",
    "counts": r"\{[ ]*(?:\d+[ ]*)?(?:,[ ]*(?:\d+[ ]*)?)?\}",
    "mark": r"->|\.\.|[:|()\[\]*+?!~.,{}&]",
}
_SYMBOL = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()), re.DOTALL)
_UNFINISHED = {'"': "a string without its closing '\"'", "/": "a regular expression without its closing '/'"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NAMED = {**{char: char for char in "\"'\\/"}, **dict(zip("nrtfvab0", "\n\r\t\f\v\a\b\0", strict=True))}
_REFUSED = {
    "%declare": "terminals that are not defined cannot be written",
    "%extend": "write the whole rule",
    "%override": "write the rule once",
    "%json": "JSON Schema belongs into a function's 'parameters'",
    "%regex": "write a regular expression between slashes",
    "%lark": "write one grammar",
    "%llguidance": "options of llguidance are the server's own",
}
_COMMON = r"""
DIGIT: "0".."9"
HEXDIGIT: "a".."f" | "A".."F" | DIGIT
INT: DIGIT+
SIGNED_INT: ("+" | "-")? INT
DECIMAL: INT "." INT? | "." INT
_EXP: ("e" | "E") SIGNED_INT
FLOAT: INT _EXP | DECIMAL _EXP?
SIGNED_FLOAT: ("+" | "-")? FLOAT
NUMBER: FLOAT | INT
SIGNED_NUMBER: ("+" | "-")? NUMBER
ESCAPED_STRING: /"([^"\\\n]|\\[^\n])*"/
LCASE_LETTER: "a".."z"
UCASE_LETTER: "A".."Z"
LETTER: UCASE_LETTER | LCASE_LETTER
WORD: LETTER+
CNAME: ("_" | LETTER) ("_" | LETTER | DIGIT)*
WS_INLINE: (" " | /\t/)+
WS: /[ \t\f\r\n]/+
CR: /\r/
LF: /\n/
NEWLINE: (CR? LF)+
SH_COMMENT: /#[^\n]*/
CPP_COMMENT: /\/\/[^\n]*/
C_COMMENT: /\/\*([^*]|\*+[^*\/])*\*+\//
SQL_COMMENT: /--[^\n]*/
"""


class Place(NamedTuple):
    line: int
    column: int


class Symbol(NamedTuple):
    kind: str
    text: str
    place: Place
    is_first: bool


class LarkGrammar(msgspec.Struct, frozen=True):
    rules: dict[str, Expr]
    terminals: dict[str, Expr]
    """Languages that may refer to each other. Unnamed ones get names with `@`."""
    ignored: list[str]
    places: dict[str, Place]


def read_lark(text: str) -> LarkGrammar:
    if len(text) > MOST_LARK_CHARACTERS:
        raise InvalidGrammar(1, 1, f"more than {MOST_LARK_CHARACTERS} characters")
    return _Reader(list(_symbols(text))).grammar()


@functools.lru_cache(maxsize=1)
def _common() -> LarkGrammar:
    return _Reader(list(_symbols(_COMMON)), is_common=True).grammar()


def fail(place: Place, message: str) -> NoReturn:
    raise InvalidGrammar(place.line, place.column, message)


def _symbols(text: str) -> Iterator[Symbol]:
    """A line break between symbols only marks the beginning of a definition."""
    at, line, start, is_first = 0, 1, 0, True
    while at < len(text):
        found = _SYMBOL.match(text, at)
        place = Place(line, at - start + 1)
        if found is None:
            fail(place, _UNFINISHED.get(text[at], f"{text[at]!r} begins no symbol of Lark"))
        kind = str(found.lastgroup)
        if kind == "line":
            line, start, is_first = line + 1, at + len(found[0].rstrip(" \t")), True
        elif kind not in ("space", "comment"):
            yield Symbol(kind, found[0], place, is_first)
            is_first = False
        at = found.end()
    yield Symbol("end", "", Place(line, at - start + 1), is_first=True)


class _Reader:
    def __init__(self, symbols: list[Symbol], *, is_common: bool = False) -> None:
        self._symbols = symbols
        self._next = 0
        self._is_common = is_common
        self._rules: dict[str, Expr] = {}
        self._terminals: dict[str, Expr] = {}
        self._ignored: list[str] = []
        self._mentioned: dict[str, Place] = {}
        self._defined: dict[str, Place] = {}
        self._unnamed: dict[Expr, str] = {}
        self._depth = 0
        self._num_ranges = 0

    def grammar(self) -> LarkGrammar:
        while self._here.kind != "end":
            self._statement()
        for name, place in self._mentioned.items():
            if name not in self._defined:
                fail(place, f"there is no {'rule' if name.islower() else 'terminal'} {name!r}")
        for kind, found, most in (
            ("rules", self._rules, _MOST_RULES),
            ("terminals", self._terminals, _MOST_TERMINALS),
        ):
            if len(found) > most:
                fail(self._here.place, f"more than {most} {kind}, those without names included")
        if START not in self._rules and not self._is_common:
            fail(self._here.place, f"there is no rule {START!r}, where every grammar begins")
        return LarkGrammar(self._rules, self._terminals, self._ignored, {**self._mentioned, **self._defined})

    @property
    def _here(self) -> Symbol:
        return self._symbols[self._next]

    def _taken(self) -> Symbol:
        symbol = self._here
        if symbol.kind == "end":
            fail(symbol.place, "the grammar ends here, where more must follow")
        self._next += 1
        return symbol

    def _takes(self, text: str) -> bool:
        if self._here.text != text or self._here.kind == "text":
            return False
        self._next += 1
        return True

    # Statements

    def _statement(self) -> None:
        here = self._here
        while self._here.text in ("!", "?"):
            self._next += 1
        if self._here.kind in ("rule", "terminal"):
            self._definition()
        elif here.text == "%ignore":
            self._next += 1
            if len(self._ignored) >= _MOST_IGNORED:
                fail(here.place, f"more than {_MOST_IGNORED} times '%ignore'; join them with '|'")
            self._ignored.append(self._terminal_of(self._choice(in_terminal=True)))
        elif here.text == "%import":
            self._next += 1
            self._import()
        elif here.text in _REFUSED:
            fail(here.place, f"'{here.text}' is not supported: {_REFUSED[here.text]}")
        else:
            fail(here.place, f"expected a rule or a terminal with ':', or a directive, not {_shown(here)}")

    def _definition(self) -> None:
        symbol = self._taken()
        name = symbol.text
        self._define(name, symbol.place)
        if self._here.text.startswith("{"):
            fail(self._here.place, "templates are not supported: write the rule for each of its uses")
        if self._here.text == "[":
            fail(self._here.place, "attributes of rules are not supported")
        if self._takes("."):
            if self._here.kind != "number":
                fail(self._here.place, f"expected a priority, not {_shown(self._here)}")
            self._next += 1
        if not self._takes(":"):
            fail(self._here.place, f"expected ':' behind {name!r}, not {_shown(self._here)}")
        self._takes("|")
        if symbol.kind == "terminal":
            self._terminals[name] = self._choice(in_terminal=True)
        else:
            self._rules[name] = self._choice(in_terminal=False)

    def _define(self, name: str, place: Place) -> None:
        if name in self._defined:
            fail(place, f"{name!r} is defined already")
        self._defined[name] = place

    def _import(self) -> None:
        module = self._taken()
        if module.text != "common":
            fail(module.place, "only terminals of the module 'common' can be imported")
        if self._takes("("):
            names = [self._taken()]
            while self._takes(","):
                names.append(self._taken())
            if not self._takes(")"):
                fail(self._here.place, f"expected ')', not {_shown(self._here)}")
            for name in names:
                self._take_in(name, name.text)
            return
        if not self._takes("."):
            fail(self._here.place, f"expected '.' and a name, not {_shown(self._here)}")
        name = self._taken()
        self._take_in(name, self._taken().text if self._takes("->") else name.text)

    def _take_in(self, name: Symbol, own: str) -> None:
        common = _common().terminals
        if name.text not in common or name.text.startswith("_"):
            fail(name.place, f"the module 'common' has no terminal {name.text!r}")
        self._define(own, name.place)
        self._terminals[own] = _resolved(common[name.text], common)

    # Expressions

    def _choice(self, *, in_terminal: bool) -> Expr:
        self._depth += 1
        if self._depth > _DEEPEST:
            fail(self._here.place, f"more than {_DEEPEST} nested groups")
        ways = [self._sequence(in_terminal)]
        while self._takes("|"):
            ways.append(self._sequence(in_terminal))
        self._depth -= 1
        return alt(*ways)

    def _sequence(self, in_terminal: bool) -> Expr:
        items = []
        while self._goes_on():
            items.append(self._counted(self._operand(in_terminal)))
        if self._takes("->"):
            self._next += 1
        return seq(*items)

    def _goes_on(self) -> bool:
        here = self._here
        if here.kind in ("end", "directive") or here.text in ("|", ")", "]", "->"):
            return False
        return not (here.is_first and self._begins_definition())

    def _begins_definition(self) -> bool:
        """A priority or a template's parameters may stand behind the name."""
        is_name = self._here.kind in ("rule", "terminal")
        return self._here.text in ("!", "?") or (
            is_name and self._symbols[self._next + 1].text in (":", ".", "{")
        )

    def _operand(self, in_terminal: bool) -> Expr:
        symbol = self._taken()
        if symbol.text in ("(", "["):
            return self._grouped(symbol, in_terminal)
        if symbol.kind == "text":
            return self._as_used(self._text(symbol), in_terminal)
        if symbol.kind == "regex":
            return self._as_used(self._regex(symbol), in_terminal)
        if symbol.kind == "special":
            fail(symbol.place, "control tokens cannot be named: write characters")
        if symbol.kind not in ("rule", "terminal"):
            fail(
                symbol.place,
                f"expected a string, a regular expression, a name or a group, not {_shown(symbol)}",
            )
        name = symbol.text
        if in_terminal and symbol.kind == "rule":
            fail(symbol.place, f"a terminal cannot name the rule {name!r}")
        if self._here.text == "{":
            fail(self._here.place, "templates are not supported: write the rule for each of its uses")
        self._mentioned.setdefault(name, symbol.place)
        return Ref(name)

    def _grouped(self, opening: Symbol, in_terminal: bool) -> Expr:
        found, closing = self._choice(in_terminal=in_terminal), ")" if opening.text == "(" else "]"
        if not self._takes(closing):
            fail(self._here.place, f"expected {closing!r}, not {_shown(self._here)}")
        return found if closing == ")" else optional(found)

    def _as_used(self, language: Expr, in_terminal: bool) -> Expr:
        return language if in_terminal else Ref(self._terminal_of(language))

    def _terminal_of(self, language: Expr) -> str:
        if isinstance(language, Ref):
            return language.name
        if language not in self._unnamed:
            name = self._unnamed[language] = f"@{len(self._unnamed)}"
            self._terminals[name] = language
        return self._unnamed[language]

    def _text(self, symbol: Symbol) -> Expr:
        text, is_folded = _unquoted(symbol)
        if self._here.text == "..":
            self._next += 1
            return Chars(_range(text, symbol, self._taken()))
        return (
            seq(*(Chars(either_case(CharSet.chars(char))) for char in text)) if is_folded else literal(text)
        )

    def _regex(self, symbol: Symbol) -> Expr:
        body, _, flags = symbol.text[1:].rpartition("/")
        try:
            language = rust_language(body.replace("\\/", "/"), Limits(), flags)
        except InvalidPattern as error:
            fail(symbol.place, f"in {symbol.text[:80]}, character {error.position}: {error.reason}")
        sets = [expr.set for expr in every_expression([language]) if isinstance(expr, Chars)]
        self._num_ranges += sum(len(chars.ranges) for chars in sets)
        if self._num_ranges > _MOST_RANGES:
            fail(symbol.place, f"more than {_MOST_RANGES} ranges of characters in regular expressions")
        return language

    def _counted(self, item: Expr) -> Expr:
        here = self._here
        if here.text in COUNT_MARKS and not (here.is_first and self._begins_definition()):
            self._next += 1
            return self._counted(repeat(item, *COUNT_MARKS[here.text]))
        if here.kind == "counts":
            self._next += 1
            try:
                return repeat(item, *counts_in_braces(here.text, _MOST_TIMES))
            except ValueError as error:
                fail(here.place, str(error))
        if here.text == "~":
            self._next += 1
            return repeat(item, *self._times())
        if here.text == "&":
            fail(here.place, "'&' is not supported: write one regular expression")
        return item

    def _times(self) -> tuple[int, int]:
        low = high = self._count()
        if self._takes(".."):
            high = self._count()
        if high < low:
            fail(self._symbols[self._next - 1].place, f"at least {low} and at most {high} times")
        return low, high

    def _count(self) -> int:
        symbol = self._taken()
        if not symbol.text.isdecimal() or int(symbol.text[:9]) > _MOST_TIMES:
            fail(symbol.place, f"expected a number up to {_MOST_TIMES}, not {_shown(symbol)}")
        return int(symbol.text)


def _shown(symbol: Symbol) -> str:
    return "the end of the grammar" if symbol.kind == "end" else repr(symbol.text[:40])


def _unquoted(symbol: Symbol) -> tuple[str, bool]:
    quoted = symbol.text
    is_folded = quoted.endswith("i")
    text = _ESCAPE.sub(functools.partial(_unescaped, symbol.place), quoted.removesuffix("i")[1:-1])
    if any("\ud800" <= char <= "\udfff" for char in text):
        fail(symbol.place, "there is no such character")
    return text, is_folded


def _unescaped(place: Place, found: re.Match[str]) -> str:
    if digits := found[1] or found[2] or found[3]:
        code = int(digits, 16)
        return chr(code) if code <= sys.maxunicode else fail(place, f"there is no character {code:#x}")
    named = _NAMED.get(found[4])
    return fail(place, f"unknown escape '\\{found[4]}'") if named is None else named


def _range(low: str, symbol: Symbol, end: Symbol) -> CharSet:
    if end.kind != "text":
        fail(end.place, f"expected a string with one character, not {_shown(end)}")
    high = _unquoted(end)[0]
    if len(low) != 1 or len(high) != 1 or high < low:
        fail(symbol.place, "a range is written with two characters, the lower one first")
    return CharSet.of((ord(low), ord(high)))


def _resolved(expr: Expr, terminals: dict[str, Expr]) -> Expr:
    if isinstance(expr, Ref):
        return _resolved(terminals[expr.name], terminals)
    return rebuilt(expr, [_resolved(part, terminals) for part in expr.parts]) if expr.references else expr
