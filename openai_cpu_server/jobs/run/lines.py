"""Cuts the parts of a file into lines."""

from __future__ import annotations

import msgspec

_BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct, frozen=True):
    number: int
    """The line's number from 1; blank lines count."""
    content: bytes


class LineSplitter:
    """Keeps the part of a line that is not complete yet. Blank lines are counted and left out."""

    def __init__(self) -> None:
        self._number = 0
        self._open: list[bytes] = []

    def feed(self, part: bytes) -> list[Line]:
        *ended, rest = part.split(b"\n")
        lines = []
        for piece in ended:
            lines += self._line(b"".join([*self._open, piece]))
            self._open = []
        if rest:
            self._open.append(rest)
        return lines

    def end(self) -> list[Line]:
        """The last line, if no line end follows it."""
        return self._line(b"".join(self._open)) if self._open else []

    def _line(self, content: bytes) -> list[Line]:
        self._number += 1
        if self._number == 1:
            content = content.removeprefix(_BOM)
        content = content.strip()
        return [Line(self._number, content)] if content else []
