"""Sets of Unicode code points, without surrogates, as sorted, disjoint, inclusive ranges."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)

Range = tuple[int, int]


def _normal(ranges: Iterable[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


@dataclass(frozen=True)
class CharSet:
    ranges: tuple[Range, ...]

    def __hash__(self) -> int:
        """Cached, because sets are looked up far more often than made."""
        cached: int | None = self.__dict__.get("_hash")
        if cached is None:
            cached = self.__dict__["_hash"] = hash(self.ranges)
        return cached

    @staticmethod
    def of(*ranges: Range) -> CharSet:
        return CharSet(_normal(r for r in ranges if r[0] <= r[1])) - _NO_CHARACTERS

    @staticmethod
    @functools.lru_cache(maxsize=1024)
    def chars(text: str) -> CharSet:
        return CharSet.of(*((ord(char), ord(char)) for char in text))

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, code: int) -> bool:
        for low, high in self.ranges:
            if code <= high:
                return low <= code
        return False

    def __or__(self, other: CharSet) -> CharSet:
        return CharSet(_normal(self.ranges + other.ranges))

    def __and__(self, other: CharSet) -> CharSet:
        out = []
        i = j = 0
        while i < len(self.ranges) and j < len(other.ranges):
            (a, b), (c, d) = self.ranges[i], other.ranges[j]
            if max(a, c) <= min(b, d):
                out.append((max(a, c), min(b, d)))
            if b < d:
                i += 1
            else:
                j += 1
        return CharSet(tuple(out))

    def __sub__(self, other: CharSet) -> CharSet:
        return self & CharSet(_gaps(other.ranges)) if other.ranges else self

    def __invert__(self) -> CharSet:
        return ANY - self

    @property
    def size(self) -> int:
        return sum(high - low + 1 for low, high in self.ranges)


def _gaps(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    gaps, start = [], 0
    for low, high in ranges:
        if start < low:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX:
        gaps.append((start, MAX))
    return tuple(gaps)


@functools.lru_cache(maxsize=512)
def single(code: int) -> CharSet:
    return CharSet(() if _SURROGATES[0] <= code <= _SURROGATES[1] else ((code, code),))


_NO_CHARACTERS = CharSet((_SURROGATES,))
ANY = CharSet.of((0, MAX))
DIGITS = CharSet.of((0x30, 0x39))
WORD = CharSet.chars("_") | DIGITS | CharSet.of((0x41, 0x5A), (0x61, 0x7A))
SPACE = CharSet.chars(" \t\n\r\x0b\x0c\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff") | CharSet.of(
    (0x2000, 0x200A)
)


def of_bytes(found: Iterable[int]) -> CharSet:
    ranges = {byte: (byte, byte) for byte in range(0x80)}
    ranges |= {0xC0 + i: (i << 6, (i << 6) + 0x3F) for i in range(2, 0x20)}
    ranges |= {0xE0 + i: (max(i << 12, 0x800), (i << 12) + 0xFFF) for i in range(0x10)}
    ranges |= {0xF0 + i: (max(i << 18, 0x10000), min((i << 18) + 0x3FFFF, MAX)) for i in range(5)}
    return CharSet.of(*(ranges[byte] for byte in found if byte in ranges))


NOT_LINE_END = ANY - CharSet.chars("\n\r\u2028\u2029")


def partition(sets: Iterable[CharSet]) -> list[CharSet]:
    """Return the coarsest classes of which every set is a union. Classes of earlier sets come first; together
    they are ANY."""
    all_sets = [ANY, *sets]
    ranges: dict[int, list[Range]] = {}
    for low, high, inside in _stretches(all_sets):
        ranges.setdefault(inside, []).append((low, high))
    everywhere = 1 << (len(all_sets) - 1)
    return [CharSet(tuple(ranges[i])) for i in sorted(ranges, reverse=True) if i & everywhere]


def _stretches(sets: list[CharSet]) -> Iterator[tuple[int, int, int]]:
    changes: dict[int, int] = {}
    for number, each in enumerate(reversed(sets)):
        for low, high in each.ranges:
            changes[low] = changes.get(low, 0) ^ (1 << number)
            changes[high + 1] = changes.get(high + 1, 0) ^ (1 << number)
    begin, inside = 0, 0
    for place in sorted(changes):
        if inside and changes[place]:
            yield begin, place - 1, inside
        if changes[place]:
            begin, inside = place, inside ^ changes[place]
