"""Thoughts in front of an answer: how they are marked, and where they end. Whoever counts or forbids tokens
by that, here or in the engine, follows an output with `Thoughts`, so that all agree."""

from __future__ import annotations

import msgspec

_LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


class Thinking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the thoughts of one output are marked. Marks name control tokens as the vocabulary does."""

    end: str
    """The mark behind the thoughts."""
    begin: str = ""
    """The mark with which the output may begin, behind white space; without it there are no thoughts.

    "": the prompt has opened the thoughts, and the output begins within them.
    """
    opening: tuple[int, ...] = ()
    """Tokens with which the output must begin: they spell `begin`. (): it may begin with it or not."""
    shown_behind: str = ""
    """What is for the user begins behind this mark, which comes after the thoughts, for a format whose
    messages have headers; "": right behind the thoughts."""
    budget: int | None = None
    """The most tokens of the thoughts, marks not counted, before they are ended; None: any number.

    A character that has begun is finished first.
    """
    closing: tuple[int, ...] = ()
    """Tokens that end the thoughts when the budget is used up: they spell `end`, maybe behind last words."""


class Shown:
    """Follows an output to where it is for the user: stop strings are looked for from there on."""

    def __init__(self, thinking: Thinking) -> None:
        self._thoughts: Thoughts | None = Thoughts(thinking)
        """None: they have ended."""
        self._mark = thinking.shown_behind.encode()
        self._text = b""
        """What has come behind the thoughts, as far as it may matter."""

    def begins_with(self, piece: bytes) -> bool:
        """Read the next token's bytes. True: what follows it is for the user. Nothing can be read then."""
        answer: bytes | None = piece
        if self._thoughts is not None:
            answer = self._thoughts.read(piece)
        if answer is None:
            return False
        self._thoughts = None
        return not self._mark or self._is_behind_mark(answer)

    def _is_behind_mark(self, piece: bytes) -> bool:
        """An output that has no headers is for the user at once."""
        self._text += piece
        head = self._text.lstrip()[:2]
        if not _HEADER.startswith(head) or self._mark in self._text:
            return True
        self._text = head + self._text.lstrip()[2:][-len(self._mark) :]
        return False


_HEADER = b"<|"
"""Every header begins so."""


class Thoughts:
    """Follows an output from its first token to the end of its thoughts. Where it stands depends on the
    tokens alone. A shallow copy goes on by itself."""

    def __init__(self, thinking: Thinking) -> None:
        self._begin = thinking.begin.encode()
        self._end = thinking.end.encode()
        self._budget = thinking.budget
        self._is_inside = not self._begin
        self._tail = b""
        """What may be a part of the next mark, or of a character."""
        self._num_read = 0
        self._num_inside = 0
        """Tokens since the thoughts have begun."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the thoughts so far, their marks included; 0 if none have begun."""
        return self._num_read if self._is_inside else 0

    @property
    def is_used_up(self) -> bool:
        """Whether the budget is, so that `closing` must follow."""
        if self._budget is None or not self._is_inside or self._num_inside < self._budget:
            return False
        is_late = self._num_inside >= self._budget + _LONGEST_CHARACTER - 1
        return is_late or not _ends_within_character(self._tail)

    def read(self, piece: bytes) -> bytes | None:
        """Read the next token's bytes. None: the answer has not begun; else what belongs to it already.

        Nothing can be read behind that.
        """
        self._num_read += 1
        if self._is_inside:
            self._num_inside += 1
            return self._look_for_end(self._tail + piece)
        text = (self._tail + piece).lstrip()
        if text.startswith(self._begin):
            self._is_inside = True
            return self._look_for_end(text[len(self._begin) :])
        if not self._begin.startswith(text):
            return self._tail + piece
        self._tail += piece
        return None

    def _look_for_end(self, text: bytes) -> bytes | None:
        _, found, answer = text.partition(self._end)
        if found:
            return answer
        self._tail = text[-max(len(self._end) - 1, _LONGEST_CHARACTER) :]
        return None


def _ends_within_character(text: bytes) -> bool:
    for length, byte in enumerate(reversed(text[-_LONGEST_CHARACTER:]), start=1):
        if byte & 0xC0 != 0x80:  # the character's first byte, which tells how many it has
            return length < 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
    return False
