"""Unpaired surrogates in JSON of MCP servers. JavaScript writes them into cut texts as escapes, for which the
parser rejects the whole message."""

from __future__ import annotations

import re

_FIRST = rb"u[dD][89abAB][0-9a-fA-F]{2}"
_SECOND = rb"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(
    rb"\\(?:" + _FIRST + rb"\\" + _SECOND + rb"|(?P<half>" + _FIRST + rb"|" + _SECOND + rb")|.)", re.DOTALL
)
_CUT = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3}|" + _FIRST + rb"(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?\Z")
_LONGEST_CUT = 11


class PairedEscapes:
    r"""Replaces unpaired surrogates by `\ufffd`, of the same length."""

    def __init__(self) -> None:
        self._held = b""
        """Begin of an incomplete escape."""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        end = self._end(data)
        self._held = data[end:]
        return _ESCAPE.sub(_paired, data[:end])

    def rest(self) -> bytes:
        held, self._held = self._held, b""
        return _ESCAPE.sub(_paired, held)

    @staticmethod
    def _end(data: bytes) -> int:
        cut = _CUT.search(data, max(0, len(data) - _LONGEST_CUT))
        if cut is None:
            return len(data)
        # An even number of backslashes before it are escapes of one another.
        before = data[: cut.start()]
        num_before = len(before) - len(before.rstrip(b"\\"))
        return cut.start() if num_before % 2 == 0 else len(data)


def paired_escapes(data: bytes) -> bytes:
    return _ESCAPE.sub(_paired, data) if b"\\u" in data else data


def _paired(found: re.Match[bytes]) -> bytes:
    return found[0] if found["half"] is None else rb"\ufffd"
