"""Size of a JSON text, counted before it is parsed, at 1 to 2 ms per megabyte. A parser holds the
interpreter's lock and needs memory for each value: a megabyte of `[]` has a third of a million."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from openai_cpu_server.errors import TooManyValues

MOST_POINTS = 200_000
"""Limit of containers: a list or a string counts 1, an object 3. Parsing takes about 50 ms; 10,000 messages
have 160,000, a JSON Schema with 12,000 subschemas 100,000."""
MOST_NUMBERS = 200_000
MOST_TOKENS = 500_000
"""The same for bodies with token ids. OpenAI takes 300,000 tokens in one call."""
_MOST_UNQUOTED_BYTES = 8 * 2**20
"""Limit of bytes outside strings, because long numbers are slow to read."""
_SMALL = 64 * 1024
"""A smaller text cannot exceed the limits by a harmful amount."""
_PIECE = 128 * 1024
_DROPPED = bytes(set(range(256)) - set(b",[{"))


class JsonSize(NamedTuple):
    numbers: int = 0
    num_unquoted: int = 0
    """Bytes outside strings."""
    num_quotes: int = 0
    containers: int = 0
    """Points of lists and objects."""

    @property
    def points(self) -> int:
        return self.containers + self.num_quotes // 2


def check_json_size(data: bytes, *, most_numbers: int = MOST_NUMBERS) -> None:
    """Reject a text with too many values. Raises TooManyValues; invalid JSON may pass."""
    if len(data) <= _SMALL:
        return
    for size in _sizes(data):
        if size.points > MOST_POINTS:
            raise TooManyValues(f"{MOST_POINTS:,} lists, names and strings (an object counts three times)")
        if size.numbers > most_numbers:
            raise TooManyValues(f"{most_numbers:,} values")
        if size.num_unquoted > _MOST_UNQUOTED_BYTES:
            raise TooManyValues(f"{_MOST_UNQUOTED_BYTES:,} bytes outside of strings")


def size_of(data: bytes) -> JsonSize:
    return [JsonSize(), *_sizes(data)][-1]


def _sizes(data: bytes) -> Iterator[JsonSize]:
    size, is_inside, rest = JsonSize(), False, b""
    for start in range(0, len(data), _PIECE):
        piece, rest = _without_escapes(rest + data[start : start + _PIECE])
        parts = piece.split(b'"')
        num_quotes = len(parts) - 1
        unquoted = b"".join(parts[is_inside::2])
        marks = unquoted.translate(None, _DROPPED)
        size = JsonSize(
            size.numbers + marks.count(b","),
            size.num_unquoted + len(unquoted),
            size.num_quotes + num_quotes,
            size.containers + marks.count(b"[") + 3 * marks.count(b"{"),
        )
        is_inside ^= num_quotes % 2 == 1
        yield size


def _without_escapes(piece: bytes) -> tuple[bytes, bytes]:
    """Return the text, and a backslash that belongs to the next piece."""
    if b"\\" not in piece:
        return piece, b""
    piece = piece.replace(b"\\\\", b"")
    rest = b"\\" if piece.endswith(b"\\") else b""
    return piece.removesuffix(b"\\").replace(b'\\"', b""), rest
