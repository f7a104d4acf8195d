"""Turns the bytes of tokens into text: whole tokens, whole characters, never a part of a stop string."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

_utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True)
class Release:
    """Text that may be shown, and how many of the held tokens it belongs to."""

    num_tokens: int
    text: str
    stop: str | None = None
    """The stop string that was found; `text` ends before it."""

    @property
    def stopped(self) -> bool:
        return self.stop is not None


class TextStream:
    """Takes each token's bytes, and releases text token by token.

    Held back are tokens that end within a character, or within what may become a stop string.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = [s.encode() for s in stop]
        self._held = b""
        self._ends: list[int] = []
        """Where each held token ends in `_held`."""

    def watch(self, stop: Iterable[str]) -> None:
        """Look for these stop strings instead, in what comes from now on and in what is held."""
        self._stop = [s.encode() for s in stop]

    def push(self, piece: bytes) -> Release:
        self._held += piece
        self._ends.append(len(self._held))
        found = [(at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            return self._cut(*min(found, key=lambda place: place[0]))
        return self._release(self._num_releasable())

    def flush(self) -> Release:
        """Release all that is held, at the end. An unfinished character becomes U+FFFD."""
        return self._release(len(self._ends))

    def _cut(self, at: int, stop: bytes) -> Release:
        text = self._held[:at].decode(errors="replace")
        starts = [0, *self._ends[:-1]]
        return Release(sum(start < at for start in starts), text, stop.decode())

    def _num_releasable(self) -> int:
        safe = len(self._held) - max(self._unfinished_stop(), self._unfinished_character())
        num_tokens = bisect_right(self._ends, safe)
        while num_tokens and self._splits_character(self._ends[num_tokens - 1]):
            num_tokens -= 1
        return num_tokens

    def _release(self, num_tokens: int) -> Release:
        cut = self._ends[num_tokens - 1] if num_tokens else 0
        text = self._held[:cut].decode(errors="replace")
        self._held = self._held[cut:]
        self._ends = [end - cut for end in self._ends[num_tokens:]]
        return Release(num_tokens, text)

    def _unfinished_stop(self) -> int:
        """Length of the longest end of the held bytes that some stop string begins with."""
        return max((_overlap(self._held, s) for s in self._stop), default=0)

    def _unfinished_character(self) -> int:
        if not self._held or self._held[-1] < 0x80:
            return 0
        decoder = _utf8(errors="replace")
        decoder.decode(self._held)
        return len(decoder.getstate()[0])

    def _splits_character(self, at: int) -> bool:
        return at < len(self._held) and self._held[at] & 0xC0 == 0x80


def _overlap(text: bytes, stop: bytes) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
