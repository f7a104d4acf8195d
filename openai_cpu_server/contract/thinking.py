"""Thoughts in front of an answer: how they are marked, and where they end.

The engine alone looks for that: where it says what text is part of, and where it decides which tokens may
come. Both follow the output with `Thoughts`, so that they agree.
"""

from __future__ import annotations

import enum

import msgspec

_LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


class OutputPart(enum.Enum):
    """What a piece of an output's text is part of. Thoughts come before the answer, and never after it.

    Tool calls are part of the answer: how they are written is data of rooms that the API knows
    (`prompt/tool_formats`), and it reads them there. So are the thoughts of a format in channels, which stand
    between its calls too.
    """

    THINKING = "thinking"
    ANSWER = "answer"


class OutputMarks(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the parts of one output are marked. Marks, and white space around them, belong to no part."""

    begin: str = ""
    """The mark with which the output may begin, behind white space; without it there are no thoughts.

    "": the prompt has opened the thoughts, and the output begins within them.
    """
    end: str = ""
    """The mark behind the thoughts; "": there are none, the prompt has closed them."""
    answer_begin: str = ""
    """A mark that may stand between the thoughts and the answer."""
    answer_end: str = ""
    """A mark that may stand behind the answer."""
    has_channels: bool = False
    """The text goes on as it is, for a reader of channels; only tokens are told apart."""


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


class Thoughts:
    """Follows an output from its first token to the end of its thoughts. Where it stands depends on the
    tokens alone. A shallow copy goes on by itself."""

    def __init__(self, begin: str, end: str, *, budget: int | None = None) -> None:
        """As `Thinking` has them."""
        self._begin = begin.encode()
        self._end = end.encode()
        self._budget = budget
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
