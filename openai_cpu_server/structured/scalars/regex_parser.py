r"""Parser of ECMAScript regular expressions. Groups capture nothing; back references and flags are
rejected. `\d`, `\w` and `\b` are ASCII only, while `\s` is all white space of Unicode. A character is a
code point, as with the flag `u`."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterator
from typing import NoReturn, Union

import msgspec

from openai_cpu_server.structured.languages.charset import DIGITS, NOT_LINE_END, SPACE, WORD, CharSet
from openai_cpu_server.structured.languages.expr import COUNT_MARKS
from openai_cpu_server.structured.options import InvalidPattern, Limits

SHORTHANDS = {"d": DIGITS, "D": ~DIGITS, "w": WORD, "W": ~WORD, "s": SPACE, "S": ~SPACE}
CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "v": "\x0b", "f": "\x0c", "0": "\0"}
_POSIX_NAMES = {
    "letter": "L",
    "uppercase_letter": "Lu",
    "lowercase_letter": "Ll",
    "digit": "Nd",
    "number": "N",
    "punctuation": "P",
    "symbol": "S",
    "separator": "Z",
    "mark": "M",
}


@functools.lru_cache(maxsize=1)
def _categories() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    codes = list(_looked_at())
    categories = map(unicodedata.category, map(chr, codes))
    start, current = 0, unicodedata.category("\0")
    for code, category in zip(codes, categories, strict=True):
        if category != current:
            found.setdefault(current, []).append((start, code - 1))
            start, current = code, category
    found.setdefault(current, []).append((start, sys.maxunicode))
    return found


def _looked_at() -> Iterator[int]:
    """Planes 4 to 13 are empty, 15 and 16 private."""
    yield from range(0x40000)
    yield from range(0xE0000, 0xE1000)
    for plane in (0xF0000, 0x100000):
        yield from (plane, plane + 0xFFFE)


@functools.lru_cache(maxsize=64)
def unicode_property(name: str) -> CharSet | None:
    """Return the set of a general category (`L`, `Lu`, `Letter`, `gc=Nd`), or None for scripts and others."""
    short = name.split("=")[-1] if name.startswith(("gc=", "General_Category=")) else name
    short = _POSIX_NAMES.get(short.lower(), short)
    if short not in {"L", "M", "N", "P", "S", "Z", "C"} and short not in _categories():
        return None
    return CharSet.of(*(r for key, ranges in _categories().items() if key.startswith(short) for r in ranges))


_LARGEST_COUNT = 100_000
_MOST_RANGES = 3_000


class Char(msgspec.Struct, frozen=True):
    set: CharSet


class Anchor(msgspec.Struct, frozen=True):
    is_start: bool


class RegexSequence(msgspec.Struct, frozen=True):
    items: tuple[Tree, ...]


class Choice(msgspec.Struct, frozen=True):
    items: tuple[Tree, ...]


class Counted(msgspec.Struct, frozen=True):
    item: Tree
    low: int
    high: int | None


class Boundary(msgspec.Struct, frozen=True):
    """Edge of a word, or any place that is not one."""

    is_edge: bool


class Ahead(msgspec.Struct, frozen=True):
    tree: Tree
    is_wanted: bool


class Behind(msgspec.Struct, frozen=True):
    set: CharSet
    is_wanted: bool


Tree = Union[Char, Anchor, Boundary, Ahead, Behind, RegexSequence, Choice, Counted]
ASSERTIONS = (Boundary, Ahead, Behind)


class _Cursor:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def _fail(self, message: str) -> NoReturn:
        raise InvalidPattern(self._pattern, self._at, message)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _takes(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


class RegexParser(_Cursor):
    def __init__(self, pattern: str, limits: Limits) -> None:
        super().__init__(pattern)
        self._limits = limits
        self._depth = 0

    def parse(self) -> Tree:
        """Parse the pattern. Raises InvalidPattern."""
        tree = self._choice()
        if self._at < len(self._pattern):
            self._fail("unmatched ')'")
        return tree

    def _choice(self) -> Tree:
        self._depth += 1
        if self._depth > self._limits.depth:
            self._fail("groups are nested too deep")
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self) -> Tree:
        items = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._counted(self._atom()))
        return items[0] if len(items) == 1 else RegexSequence(tuple(items))

    def _atom(self) -> Tree:
        char = self._take()
        if char in "^$":
            return Anchor(char == "^")
        if char == ".":
            return Char(NOT_LINE_END)
        if char == "(":
            return self._group()
        if char == "[":
            return Char(self._class())
        if char == "\\":
            return self._edge() or Char(self._escape(in_class=False))
        if char in "*+?":
            self._fail("nothing to repeat")
        return Char(CharSet.chars(char))

    def _edge(self) -> Tree | None:
        r"""`\A`, `\Z` and `\z` belong to other dialects."""
        char = self._peek()
        if char == "" or char not in "AZzbB":
            return None
        self._at += 1
        return Boundary(char == "b") if char in "bB" else Anchor(char == "A")

    def _group(self) -> Tree:
        if not self._takes("?") or self._takes(":"):
            return self._grouped()
        for mark, is_wanted in (("=", True), ("!", False)):
            if self._takes(mark):
                return Ahead(self._grouped(), is_wanted)
            if self._takes(f"<{mark}"):
                return self._behind(is_wanted)
        self._name()
        return self._grouped()

    def _grouped(self) -> Tree:
        tree = self._choice()
        if not self._takes(")"):
            self._fail("missing ')'")
        return tree

    def _behind(self, is_wanted: bool) -> Tree:
        tree = self._grouped()
        chars = _single(tree)
        if chars is None:
            self._fail("look-behind at more than one character is not supported: match that text instead")
        return Behind(chars, is_wanted)

    def _name(self) -> None:
        end = self._pattern.find(">", self._at)
        if self._peek() not in ("<", "P") or end < 0:
            self._fail("unknown kind of group; flags such as (?i) are not ECMAScript: write [Aa] instead")
        name = self._pattern[self._at : end].removeprefix("P").removeprefix("<")
        if not name.isidentifier():
            self._fail("unknown kind of group")
        self._at = end + 1

    def _counted(self, atom: Tree) -> Tree:
        counts = self._quantifier()
        if counts is None:
            return atom
        self._takes("?")
        if self._peek() in ("*", "+"):
            self._fail("nothing to repeat")
        if isinstance(atom, (Anchor, *ASSERTIONS)):
            self._fail("an anchor or a look-around cannot be repeated")
        return Counted(atom, *counts)

    def _quantifier(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char in COUNT_MARKS:
            self._at += 1
            return COUNT_MARKS[char]
        return self._braces() if char == "{" else None

    def _braces(self) -> tuple[int, int | None] | None:
        """`{,n}` is not a count in ECMAScript, but writers of it mean one."""
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at + 1 : max(end, self._at + 1)].partition(",")
        low = "0" if comma and high and not low else low
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self._at = end + 1
        least = int(low[:9])
        most = (int(high[:9]) if high else None) if comma else least
        if max(least, most or 0) > _LARGEST_COUNT:
            self._fail(f"counts over {_LARGEST_COUNT} are refused")
        if most is not None and most < least:
            self._fail("the counts are out of order")
        return least, most

    def _escape(self, in_class: bool) -> CharSet:
        char = self._take()
        if char in SHORTHANDS:
            return SHORTHANDS[char]
        if char in "pP" and char:
            return self._property(char == "P")
        if char in "xu" and char:
            return CharSet.chars(chr(self._code(char)))
        if char == "c" and self._peek().isalpha():
            return CharSet.chars(chr(ord(self._take()) % 32))
        if char == "b" and in_class:
            return CharSet.chars("\b")
        if not char:
            self._fail("the pattern ends in a backslash")
        if char in CONTROLS and not (char == "0" and self._peek().isdigit()):
            return CharSet.chars(CONTROLS[char])
        if char.isdigit() or char == "k":
            self._fail("back references are not regular: repeat the group's text instead")
        if char.isascii() and char.isalpha():
            self._fail(f"unknown escape \\{char}")
        return CharSet.chars(char)

    def _property(self, negated: bool) -> CharSet:
        end = self._pattern.find("}", self._at)
        is_named = self._peek() == "{" and end > 0
        found = unicode_property(self._pattern[self._at + 1 : end]) if is_named else None
        if found is None:
            self._fail("only general categories are known as Unicode properties")
        self._at = end + 1
        return ~found if negated else found

    def _code(self, kind: str) -> int:
        if kind == "u" and self._takes("{"):
            end = self._pattern.find("}", self._at)
            code = self._hex(max(end - self._at, 0))
            self._at += 1
        else:
            code = self._hex(4 if kind == "u" else 2)
        if 0xD800 <= code < 0xDC00 and self._takes("\\u"):
            return 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail("no such character")
        return code

    def _hex(self, length: int) -> int:
        digits = self._pattern[self._at : self._at + length]
        if len(digits) != length or not digits or any(c not in "0123456789abcdefABCDEF" for c in digits):
            self._fail("hexadecimal digits expected")
        self._at += length
        return int(digits, 16)

    def _class(self) -> CharSet:
        negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        while not self._takes("]"):
            low = self._class_atom()
            if self._range_follows(low):
                self._at += 1
                low = self._range(low, self._class_atom())
            ranges += low.ranges
            if len(ranges) > _MOST_RANGES:
                self._fail(f"more than {_MOST_RANGES} characters and ranges in one class")
        found = CharSet.of(*ranges)
        return ~found if negated else found

    def _range_follows(self, low: CharSet) -> bool:
        r"""A dash at the end, and beside a class such as `\w`, is a character."""
        rest = self._pattern[self._at : self._at + 2]
        if rest[:1] != "-" or rest[1:] in ("", "]") or low.size != 1:
            return False
        return not (rest[1:] == "\\" and self._pattern[self._at + 2 : self._at + 3] in "dDwWsSpP")

    def _class_atom(self) -> CharSet:
        char = self._take()
        if not char:
            self._fail("missing ']'")
        return self._escape(in_class=True) if char == "\\" else CharSet.chars(char)

    def _range(self, low: CharSet, high: CharSet) -> CharSet:
        first, last = low.ranges[0][0], high.ranges[0][0]
        if first > last:
            self._fail("the range is out of order")
        return CharSet.of((first, last))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _single(tree: Tree) -> CharSet | None:
    if isinstance(tree, Char):
        return tree.set
    found = [_single(x) for x in tree.items] if isinstance(tree, Choice) else [None]
    known = [x for x in found if x is not None]
    return None if len(known) < len(found) else CharSet.of(*(r for x in known for r in x.ranges))
