"""Cuts GBNF text into symbols, all at once. A symbol's position is found when an error asks for it."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterator

from openai_cpu_server.structured.errors import InvalidGrammar

MOST_CHARACTERS = 600_000
MOST_SYMBOLS = 160_000


class Kind(enum.Enum):
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
"""Matches a symbol or a comment; or all the rest, if there is neither."""

_BY_FIRST = {
    **dict.fromkeys("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", Kind.NAME),
    **dict.fromkeys("*+?{", Kind.REPEAT),
    **dict.fromkeys("\r\n", Kind.NEWLINE),
    '"': Kind.LITERAL,
    "[": Kind.CLASS,
    "(": Kind.OPEN,
    ")": Kind.CLOSE,
    "|": Kind.OR,
    ".": Kind.ANY,
    "<": Kind.TOKEN,
    ":": Kind.DEFINE,
    "": Kind.END,
}
_UNFINISHED = {
    '"': "a literal without its closing '\"'",
    "[": "a class of characters without its closing ']'",
    "{": "a repetition without its closing '}'",
}


class Symbols:
    """The symbols in order. `texts` has no spaces and comments; its last element is "", the end."""

    def __init__(self, text: str) -> None:
        """Cut the text. Raises InvalidGrammar if it has too many symbols or characters."""
        self._text = text
        if len(text) > MOST_CHARACTERS:
            raise self._error_at(MOST_CHARACTERS, f"more than {MOST_CHARACTERS} characters")
        self.texts = [*filter(_is_symbol, _NEXT.findall(text)), ""]
        if len(self.texts) > MOST_SYMBOLS + 1:
            raise self.error(MOST_SYMBOLS, f"more than {MOST_SYMBOLS} symbols")
        self._num_readable = len(self.texts)
        if len(self.texts) > 1 and not _ONE.fullmatch(self.texts[-2]):
            self._num_readable -= 2

    def kind(self, index: int) -> Kind:
        """The kind of a symbol. Raises InvalidGrammar if no symbol begins there."""
        if index == self._num_readable:
            raise self._unreadable(index)
        return _BY_FIRST[self.texts[index][:1]]

    def error(self, index: int, message: str, offset: int = 0) -> InvalidGrammar:
        """An error at a symbol, or `offset` characters behind its beginning."""
        return self._error_at(self._start(index) + offset, message)

    def _start(self, index: int) -> int:
        return next(itertools.islice(self._starts(), index, None), len(self._text))

    def _starts(self) -> Iterator[int]:
        return (found.start(1) for found in _NEXT.finditer(self._text) if _is_symbol(found[1]))

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
    """Whether this is a symbol, not a comment or the empty match at the end."""
    return text[:1] not in ("#", "")
