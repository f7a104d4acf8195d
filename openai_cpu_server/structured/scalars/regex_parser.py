r"""Parsers of regular expressions of ECMAScript and Rust.

`\d`, `\w` and `\b` are ASCII only, while `\s` is all white space of Unicode. A character is a code point, as
with the flag `u`.
"""

from __future__ import annotations

import functools
import itertools
import sys
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass
from typing import NoReturn

from openai_cpu_server.structured.languages.charset import ANY, DIGITS, NOT_LINE_END, SPACE, WORD, CharSet
from openai_cpu_server.structured.languages.expr import COUNT_MARKS, Alt, Chars, Expr, Repeat, Seq
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
    # Planes 4 to 13 are empty, 15 and 16 private.
    private = (0xF0000, 0xFFFFE, 0x100000, 0x10FFFE)
    codes = itertools.chain(range(0x40000), range(0xE0000, 0xE1000), private)
    runs = itertools.groupby(codes, lambda code: unicodedata.category(chr(code)))
    starts = [(next(run), category) for category, run in runs]
    for (start, category), (end, _) in itertools.pairwise([*starts, (sys.maxunicode + 1, "")]):
        found.setdefault(category, []).append((start, end - 1))
    return found


@functools.lru_cache(maxsize=64)
def unicode_property(name: str) -> CharSet | None:
    """Return None for scripts and others. General categories are `L`, `Lu`, `Letter` or `gc=Nd`."""
    short = name.split("=")[-1] if name.startswith(("gc=", "General_Category=")) else name
    short = _POSIX_NAMES.get(short.lower(), short)
    if short not in {"L", "M", "N", "P", "S", "Z", "C"} and short not in _categories():
        return None
    return CharSet.of(*(r for key, ranges in _categories().items() if key.startswith(short) for r in ranges))


_LARGEST_COUNT = 100_000
_MOST_RANGES = 3_000


@dataclass(frozen=True, eq=False)
class Anchor(Expr):
    is_start: bool


@dataclass(frozen=True, eq=False)
class Boundary(Expr):
    """Edge of a word, or any place that is not one."""

    is_edge: bool


@dataclass(frozen=True, eq=False)
class Ahead(Expr):
    item: Expr
    is_wanted: bool

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.item,)


@dataclass(frozen=True, eq=False)
class Behind(Expr):
    set: CharSet
    is_wanted: bool


ASSERTIONS = (Boundary, Ahead, Behind)


class RegexParser:
    _has_empty_class = True
    """True if `[]` matches nothing; else the first `]` in a class is a character."""

    def __init__(self, pattern: str, limits: Limits) -> None:
        self._pattern = pattern
        self._at = 0
        self._limits = limits
        self._depth = 0

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

    def parse(self) -> Expr:
        if len(self._pattern) > self._limits.text:
            self._fail("the pattern is too long")
        tree = self._choice()
        if self._at < len(self._pattern):
            self._fail("unmatched ')'")
        return tree

    def _choice(self) -> Expr:
        self._depth += 1
        if self._depth > self._limits.depth:
            self._fail("groups are nested too deep")
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        self._depth -= 1
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def _sequence(self) -> Expr:
        items = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._counted(self._atom()))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def _atom(self) -> Expr:
        char = self._take()
        if char in "^$":
            return Anchor(char == "^")
        if char == ".":
            return Chars(NOT_LINE_END)
        if char == "(":
            return self._group()
        if char == "[":
            return Chars(self._class())
        if char == "\\":
            return self._edge() or Chars(self._escape(in_class=False))
        if char in "*+?":
            self._fail("nothing to repeat")
        return Chars(CharSet.chars(char))

    def _edge(self) -> Expr | None:
        r"""`\A`, `\Z` and `\z` belong to other dialects."""
        char = self._peek()
        if char == "" or char not in "AZzbB":
            return None
        self._at += 1
        return Boundary(char == "b") if char in "bB" else Anchor(char == "A")

    def _group(self) -> Expr:
        if not self._takes("?") or self._takes(":"):
            return self._grouped()
        for mark, is_wanted in (("=", True), ("!", False)):
            if self._takes(mark):
                return Ahead(self._grouped(), is_wanted)
            if self._takes(f"<{mark}"):
                chars = _single(self._grouped())
                if chars is None:
                    self._fail(
                        "look-behind at more than one character is not supported: match that text instead"
                    )
                return Behind(chars, is_wanted)
        self._name()
        return self._grouped()

    def _grouped(self) -> Expr:
        tree = self._choice()
        if not self._takes(")"):
            self._fail("missing ')'")
        return tree

    def _name(self) -> None:
        end = self._pattern.find(">", self._at)
        if self._peek() not in ("<", "P") or end < 0:
            self._fail("unknown kind of group; flags such as (?i) are not ECMAScript: write [Aa] instead")
        name = self._pattern[self._at : end].removeprefix("P").removeprefix("<")
        if not name.isidentifier():
            self._fail("unknown kind of group")
        self._at = end + 1

    def _counted(self, atom: Expr) -> Expr:
        char = self._peek()
        counts = COUNT_MARKS.get(char)
        if counts is not None:
            self._at += 1
        elif char == "{":
            counts = self._braces()
        if counts is None:
            return atom
        self._takes("?")
        if self._peek() in ("*", "+"):
            self._fail("nothing to repeat")
        if isinstance(atom, (Anchor, *ASSERTIONS)):
            self._fail("an anchor or a look-around cannot be repeated")
        return Repeat(atom, *counts)

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
        if (short := self._peek()) in tuple("LMNPSZC"):  # as RE2 and Rust write it
            self._at += 1
            return ~_any_of(short) if negated else _any_of(short)
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
            low = self._hex(4)
            if not 0xDC00 <= low < 0xE000:
                self._fail("half of a pair of surrogates is not a character")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
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
        is_negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        may_end = self._has_empty_class
        while not (may_end and self._takes("]")):
            ranges += self._folded(self._class_item()).ranges
            may_end = True
            if len(ranges) > _MOST_RANGES:
                self._fail(f"more than {_MOST_RANGES} characters and ranges in one class")
        found = CharSet.of(*ranges)
        return ~found if is_negated else found

    def _folded(self, chars: CharSet) -> CharSet:
        return chars

    def _class_item(self) -> CharSet:
        low = self._class_atom()
        if not self._range_follows(low):
            return low
        self._at += 1
        first, last = low.ranges[0][0], self._class_atom().ranges[0][0]
        if first > last:
            self._fail("the range is out of order")
        return CharSet.of((first, last))

    def _range_follows(self, low: CharSet) -> bool:
        r"""A dash at the end, or beside a class such as `\w`, is a character."""
        rest = self._pattern[self._at : self._at + 2]
        if rest[:1] != "-" or rest[1:] in ("", "]") or low.size != 1:
            return False
        return not (rest[1:] == "\\" and self._pattern[self._at + 2 : self._at + 3] in "dDwWsSpP")

    def _class_atom(self) -> CharSet:
        char = self._take()
        if not char:
            self._fail("missing ']'")
        return self._escape(in_class=True) if char == "\\" else CharSet.chars(char)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _single(tree: Expr) -> CharSet | None:
    if isinstance(tree, Chars):
        return tree.set
    found = [_single(x) for x in tree.items] if isinstance(tree, Alt) else [None]
    sets = [x for x in found if x is not None]
    return None if len(sets) < len(found) else CharSet.of(*(r for x in sets for r in x.ranges))


_NOT_NEWLINE = ANY - CharSet.chars("\n")
_HARMLESS = "uU"
"""Unicode is on anyway, and greed does not change which texts match."""
_HANDLED = "is" + _HARMLESS
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


class RustRegexParser(RegexParser):
    r"""Syntax of Rust's crate `regex`, which Python's `re` mostly shares, and look-around.

    Negations of `\d` and `\w` exclude all that any reader counts among them.
    """

    _has_empty_class = False

    def __init__(self, pattern: str, limits: Limits, flags: str) -> None:
        super().__init__(pattern, limits)
        self._flags: frozenset[str] = frozenset()
        self._set_flags(flags)

    def _set_flags(self, on: str, off: str = "") -> None:
        for flag in on + off:
            if flag not in _HANDLED and not (flag == "m" and flag in off):
                self._fail(f"the flag '{flag}' is not supported, only 'i' and 's'")
        self._flags = self._flags.union(on).difference(off)

    def _atom(self) -> Expr:
        if self._takes("."):
            return Chars(ANY if "s" in self._flags else _NOT_NEWLINE)
        if self._peek() in ("(", "["):
            return super()._atom()  # their characters are folded already
        found = super()._atom()
        return Chars(self._folded(found.set)) if isinstance(found, Chars) else found

    def _folded(self, chars: CharSet) -> CharSet:
        return either_case(chars) if "i" in self._flags else chars

    def _group(self) -> Expr:
        before = self._flags
        if self._peek() == "?" and self._pattern[self._at + 1 : self._at + 2].isalpha():
            if self._pattern[self._at + 1 : self._at + 3] != "P<":
                return self._flagged(before)
        elif self._pattern.startswith("?-", self._at):
            return self._flagged(before)
        found = super()._group()
        self._flags = before
        return found

    def _flagged(self, before: frozenset[str]) -> Expr:
        """`(?i)` holds up to the end of the group around it, `(?i:...)` for its own."""
        places = (self._pattern.find(mark, self._at) for mark in ":)")
        end = min((at for at in places if at >= 0), default=-1)
        if end < 0:
            self._fail("missing ')'")
        on, _, off = self._pattern[self._at + 1 : end].partition("-")
        self._set_flags(on, off)
        self._at = end + 1
        if self._pattern[end] == ")":
            return Seq(())
        found = self._grouped()
        self._flags = before
        return found

    def _edge(self) -> Expr | None:
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
        return super()._escape(in_class)

    def _code(self, kind: str) -> int:
        if kind == "x" and self._peek() == "{":
            return super()._code("u")
        return super()._code(kind)

    def _class_item(self) -> CharSet:
        for operator in ("&&", "--", "~~"):
            if self._pattern.startswith(operator, self._at):
                self._fail(f"'{operator}' between classes is not supported: write one class")
        if self._takes("[:"):
            return self._posix()
        if self._takes("["):
            return self._class()
        return super()._class_item()

    def _posix(self) -> CharSet:
        end = self._pattern.find(":]", self._at)
        name = self._pattern[self._at : max(end, self._at)]
        chars = _POSIX.get(name.removeprefix("^"))
        if chars is None:
            self._fail(f"there is no class '[:{name[:20]}:]'")
        self._at = end + 2
        return ~chars if name.startswith("^") else chars


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
        pairs = _cases()
        for low, high in chars.ranges:
            own = pairs[bisect_left(pairs, (low, 0)) : bisect_left(pairs, (high + 1, 0))]
            found |= CharSet.of(*((other, other) for _, other in own))
    return found


def _moved(chars: CharSet, by: int) -> CharSet:
    return CharSet.of(*((low + by, high + by) for low, high in chars.ranges))
