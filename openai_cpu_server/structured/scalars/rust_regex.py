r"""Syntax of Rust's crate `regex`, which Python's `re` mostly shares. `\d` and `\w` are ASCII only, and
their negations exclude all that any reader counts among them. Look-around is accepted, although Rust has
none."""

from __future__ import annotations

import functools

from openai_cpu_server.structured.languages.charset import ANY, DIGITS, SPACE, WORD, CharSet
from openai_cpu_server.structured.languages.expr import Expr
from openai_cpu_server.structured.options import InvalidPattern, Limits
from openai_cpu_server.structured.scalars.regex import language_of
from openai_cpu_server.structured.scalars.regex_parser import (
    Char,
    RegexParser,
    RegexSequence,
    Tree,
    unicode_property,
)

_NOT_NEWLINE = ANY - CharSet.chars("\n")
_HARMLESS = "uU"
"""Unicode is on anyway, and greed does not change which texts match."""
_KNOWN = "is" + _HARMLESS
_LETTERS = CharSet.of((0x41, 0x5A), (0x61, 0x7A))
_POSIX = {
    "alnum": _LETTERS | DIGITS,
    "alpha": _LETTERS,
    "ascii": CharSet.of((0, 0x7F)),
    "blank": CharSet.chars(" \t"),
    "cntrl": CharSet.of((0, 0x1F), (0x7F, 0x7F)),
    "digit": DIGITS,
    "graph": CharSet.of((0x21, 0x7E)),
    "lower": CharSet.of((0x61, 0x7A)),
    "print": CharSet.of((0x20, 0x7E)),
    "punct": CharSet.of((0x21, 0x7E)) - _LETTERS - DIGITS,
    "space": CharSet.chars("\t\n\v\f\r "),
    "upper": CharSet.of((0x41, 0x5A)),
    "word": WORD,
    "xdigit": DIGITS | CharSet.chars("abcdefABCDEF"),
}
_MOST_RANGES = 3_000


def rust_language(pattern: str, limits: Limits, flags: str = "") -> Expr:
    """Return the strings that match as a whole. Raises InvalidPattern."""
    if len(pattern) > limits.text:
        raise InvalidPattern(pattern, 0, "the pattern is too long")
    return language_of(pattern, _RustParser(pattern, limits, flags).parse())


class _RustParser(RegexParser):
    def __init__(self, pattern: str, limits: Limits, flags: str) -> None:
        super().__init__(pattern, limits)
        self._flags: frozenset[str] = frozenset()
        self._set_flags(flags)

    def _set_flags(self, on: str, off: str = "") -> None:
        for flag in on + off:
            if flag not in _KNOWN and not (flag == "m" and flag in off):
                self._fail(f"the flag '{flag}' is not supported, only 'i' and 's'")
        self._flags = self._flags.union(on).difference(off)

    def _atom(self) -> Tree:
        if self._takes("."):
            return Char(ANY if "s" in self._flags else _NOT_NEWLINE)
        if self._peek() in ("(", "["):
            return super()._atom()  # their characters are folded already
        found = super()._atom()
        return Char(self._folded(found.set)) if isinstance(found, Char) else found

    def _folded(self, chars: CharSet) -> CharSet:
        return either_case(chars) if "i" in self._flags else chars

    def _group(self) -> Tree:
        before = self._flags
        if self._peek() == "?" and self._pattern[self._at + 1 : self._at + 2].isalpha():
            if self._pattern[self._at + 1 : self._at + 3] != "P<":
                return self._flagged(before)
        elif self._pattern.startswith("?-", self._at):
            return self._flagged(before)
        found = super()._group()
        self._flags = before
        return found

    def _flagged(self, before: frozenset[str]) -> Tree:
        """`(?i)` holds up to the end of the group around it, `(?i:...)` for its own."""
        end = min((at for at in map(self._find, ":)") if at >= 0), default=-1)
        if end < 0:
            self._fail("missing ')'")
        on, _, off = self._pattern[self._at + 1 : end].partition("-")
        self._set_flags(on, off)
        self._at = end + 1
        if self._pattern[end] == ")":
            return RegexSequence(())
        found = self._grouped()
        self._flags = before
        return found

    def _find(self, mark: str) -> int:
        return self._pattern.find(mark, self._at)

    def _edge(self) -> Tree | None:
        return None if self._peek() == "Z" else super()._edge()

    def _escape(self, in_class: bool) -> CharSet:
        char = self._peek()
        negated = {"D": DIGITS | _any_of("Nd"), "W": _any_word(), "S": SPACE | CharSet.chars("\x85")}
        if char in negated:
            self._at += 1
            return ~negated[char]
        if char == "s":
            self._at += 1
            return SPACE - CharSet.chars("\ufeff")
        if char == "a":
            self._at += 1
            return CharSet.chars("\a")
        if char in "pP" and char and self._pattern[self._at + 1 : self._at + 2] in tuple("LMNPSZC"):
            self._at += 2
            found = _any_of(self._pattern[self._at - 1])
            return ~found if char == "P" else found
        return super()._escape(in_class)

    def _code(self, kind: str) -> int:
        if kind == "x" and self._peek() == "{":
            return super()._code("u")
        return super()._code(kind)

    def _class(self) -> CharSet:
        negated = self._takes("^")
        found: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self._takes("]"):
            found += self._folded(self._class_item()).ranges
            is_first = False
            if len(found) > _MOST_RANGES:
                self._fail(f"more than {_MOST_RANGES} characters and ranges in one class")
        chars = CharSet.of(*found)
        return ~chars if negated else chars

    def _class_item(self) -> CharSet:
        for operator in ("&&", "--", "~~"):
            if self._pattern.startswith(operator, self._at):
                self._fail(f"'{operator}' between classes is not supported: write one class")
        if self._takes("[:"):
            return self._posix()
        if self._takes("["):
            return self._class()
        low = self._class_atom()
        if not self._range_follows(low):
            return low
        self._at += 1
        return self._range(low, self._class_atom())

    def _posix(self) -> CharSet:
        end = self._pattern.find(":]", self._at)
        name = self._pattern[self._at : max(end, self._at)]
        known = _POSIX.get(name.removeprefix("^"))
        if known is None:
            self._fail(f"there is no class '[:{name[:20]}:]'")
        self._at = end + 2
        return ~known if name.startswith("^") else known


def _any_of(*names: str) -> CharSet:
    found = CharSet(())
    for name in names:
        found |= unicode_property(name) or CharSet(())
    return found


@functools.lru_cache(maxsize=1)
def _any_word() -> CharSet:
    return _any_of("L", "M", "N", "Pc") | CharSet.of((0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F189))


@functools.lru_cache(maxsize=1)
def _cases() -> list[tuple[int, int]]:
    pairs = set()
    for code in range(0x80, 0x1E944):
        char = chr(code)
        pairs |= {(code, ord(x)) for x in (char.lower(), char.upper()) if len(x) == 1 and x != char}
    return sorted(pairs | {(other, code) for code, other in pairs})


def either_case(chars: CharSet) -> CharSet:
    small, large = chars & CharSet.of((0x61, 0x7A)), chars & CharSet.of((0x41, 0x5A))
    found = chars | _moved(small, -32) | _moved(large, 32)
    if chars.ranges and chars.ranges[-1][1] >= 0x80:
        found |= CharSet.of(*((other, other) for code, other in _cases() if code in chars))
    return found


def _moved(chars: CharSet, by: int) -> CharSet:
    return CharSet.of(*((low + by, high + by) for low, high in chars.ranges))
