"""Character escapes and classes of ECMAScript regular expressions."""

from __future__ import annotations

import functools
import sys
import unicodedata
from collections.abc import Iterator

from openai_cpu_server.structured.languages.charset import DIGITS, SPACE, WORD, CharSet

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
    """The ranges of every two-letter general category, by this Python's Unicode tables."""
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
    """Every code point that may differ from the one before it.
    Planes 4 to 13 are empty, 15 and 16 private."""
    yield from range(0x40000)
    yield from range(0xE0000, 0xE1000)
    for plane in (0xF0000, 0x100000):
        yield from (plane, plane + 0xFFFE)


@functools.lru_cache(maxsize=64)
def unicode_property(name: str) -> CharSet | None:
    """The set of `L`, `Lu`, `Letter`, `gc=Nd`: a general category. None for anything else, scripts too."""
    short = name.split("=")[-1] if name.startswith(("gc=", "General_Category=")) else name
    short = _POSIX_NAMES.get(short.lower(), short)
    if short not in {"L", "M", "N", "P", "S", "Z", "C"} and short not in _categories():
        return None
    return CharSet.of(*(r for key, ranges in _categories().items() if key.startswith(short) for r in ranges))
