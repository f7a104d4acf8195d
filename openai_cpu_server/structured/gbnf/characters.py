"""Reads what stands between the quotes of a literal and the brackets of a class."""

from __future__ import annotations

import functools
import re

from openai_cpu_server.structured.languages.charset import MAX, CharSet

_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\([nrt\\\"\[\]-])|([^\\])", re.DOTALL
)
_LONGEST_CLASS = 20_000
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_LOWEST_SURROGATE, _HIGHEST_SURROGATE = 0xD800, 0xDFFF


class WrongCharacter(Exception):
    """A character that cannot stand there; `position` counts within the symbol's text."""

    def __init__(self, position: int, message: str) -> None:
        super().__init__(message)
        self.position = position


def literal_text(symbol: str) -> str:
    """The text of a literal. Raises WrongCharacter."""
    if "\\" not in symbol and symbol.isascii():
        return symbol[1:-1]
    return "".join(chr(code) for code, _ in _codes(symbol, 1))


@functools.lru_cache(maxsize=1024)
def class_set(text: str) -> CharSet:
    """The set of `[a-z]` or `[^a-z]`.
    A dash that is first or last stands for itself. Raises WrongCharacter."""
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
    """The (code point, position in the symbol) of every character up to the closing mark."""
    found = []
    end = len(text) - 1
    if "\\" not in text:
        return _plain_codes(text, position, end)
    while position < end:
        match = _CHARACTER.match(text, position, end)
        if match is None:
            raise WrongCharacter(position, _wrong_escape(text[position : position + 2]))
        code = _code(match)
        if code > MAX or _LOWEST_SURROGATE <= code <= _HIGHEST_SURROGATE:
            raise WrongCharacter(position, f"there is no character {code:#x}")
        found.append((code, position))
        position = match.end()
    return found


def _plain_codes(text: str, position: int, end: int) -> list[tuple[int, int]]:
    wrong = _SURROGATE.search(text)
    if wrong:
        raise WrongCharacter(wrong.start(), f"there is no character {ord(wrong[0]):#x}")
    return [(ord(text[i]), i) for i in range(position, end)]


def _code(match: re.Match[str]) -> int:
    digits = match[1] or match[2] or match[3]
    if digits:
        return int(digits, 16)
    return ord(_NAMED.get(match[4], match[4]) if match[4] else match[5])


def _wrong_escape(written: str) -> str:
    wanted = {"\\x": 2, "\\u": 4, "\\U": 8}
    if written in wanted:
        return f"{written} expects {wanted[written]} hexadecimal digits"
    known = '\\n \\r \\t \\\\ \\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH'
    return f"unknown escape {written!r}, expected one of {known}"
