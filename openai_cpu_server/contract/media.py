"""Pictures in prompts: what crosses boundaries of them.

A picture stands in a prompt as rows that an encoder makes of it, between tokens that its model wants around
them. In a prompt's tokens each row is a number that is no token of any vocabulary: it is made of the
picture's digest, so that prompts with the same picture begin with the same numbers, and no others do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Union

import msgspec

FIRST_ROW = 1 << 62
"""Numbers from here on are rows of media."""
_ROW_BYTES = 8
BLIND = "This model takes no pictures."


class PictureSize(msgspec.Struct, frozen=True):
    """In pixels."""

    width: int
    height: int


class Picture(msgspec.Struct, frozen=True, weakref=True):
    """A picture, decoded."""

    size: PictureSize
    rgb: bytes
    """(height, width, 3) bytes."""
    digest: str
    """Of all these, in hexadecimal digits."""

    @classmethod
    def of(cls, size: PictureSize, rgb: bytes) -> Picture:
        assert len(rgb) == 3 * size.width * size.height
        digest = hashlib.blake2b(f"{size.width}x{size.height}:".encode(), digest_size=32)
        digest.update(rgb)
        return cls(size, rgb, digest.hexdigest())


class MediaRows(msgspec.Struct, frozen=True):
    """Rows that an encoder makes of a medium, or of a part of it."""

    num_rows: int
    num_positions: int
    """So many positions of the sequence they take: fewer than rows where these have several dimensions."""
    has_one_place: bool = False
    """All of them stand at one position: no sequence can begin between two."""
    is_whole: bool = False
    """Each attends to all of them, so that they are computed in one step."""


MediaShape = tuple[Union[tuple[int, ...], MediaRows], ...]
"""What stands for one picture in a prompt, in order: tokens, and rows."""


class MeasuredPicture(msgspec.Struct, frozen=True, omit_defaults=True):
    size: PictureSize
    shape: MediaShape = ()
    why_not: str = ""
    """Why none of this size can be taken; "": it can."""


class Medium(msgspec.Struct, frozen=True):
    """Rows in a request's prompt, from `start` on."""

    start: int
    rows: MediaRows
    picture: int
    """Its place among the request's pictures."""
    part: int = 0
    """Which of the parts of the picture they are, from 0 on: `MediaRows` number `part` of its shape."""

    @property
    def end(self) -> int:
        return self.start + self.rows.num_rows

    @property
    def can_be_cut(self) -> bool:
        """Whether a sequence may begin behind some of the rows."""
        return not (self.rows.has_one_place or self.rows.is_whole)


def is_row(number: int) -> bool:
    return number >= FIRST_ROW


def row_numbers(digest: str, part: int, num_rows: int) -> tuple[int, ...]:
    """What stands for these rows in a prompt's tokens."""
    stream = hashlib.shake_128(f"{digest}/{part}".encode()).digest(num_rows * _ROW_BYTES)
    words = (stream[at : at + _ROW_BYTES] for at in range(0, len(stream), _ROW_BYTES))
    return tuple(FIRST_ROW | (int.from_bytes(word, "little") >> 2) for word in words)


def are_rows(tokens: Sequence[int], media: Sequence[Medium], pictures: Sequence[Picture]) -> bool:
    """Whether these media stand in the prompt in order, as they are said to, with tokens behind the last."""
    end = 0
    for medium in media:
        if not (end <= medium.start < medium.end < len(tokens) and 0 <= medium.picture < len(pictures)):
            return False
        digest = pictures[medium.picture].digest
        if tuple(tokens[medium.start : medium.end]) != row_numbers(digest, medium.part, medium.rows.num_rows):
            return False
        end = medium.end
    return True


def shown_tokens(picture: Picture, shape: MediaShape) -> tuple[int, ...]:
    """What stands for the picture in a prompt's tokens."""
    tokens, part = list[int](), 0
    for piece in shape:
        if isinstance(piece, MediaRows):
            tokens += row_numbers(picture.digest, part, piece.num_rows)
            part += 1
        else:
            tokens += piece
    return tuple(tokens)


def media_in(
    tokens: Sequence[int], pictures: Sequence[Picture], shapes: Sequence[MediaShape]
) -> tuple[Medium, ...]:
    """Where the rows of these pictures stand in a prompt."""
    known: dict[int, tuple[MediaRows, int, int]] = {}
    for number, (picture, shape) in enumerate(zip(pictures, shapes, strict=True)):
        rows = [piece for piece in shape if isinstance(piece, MediaRows)]
        for part, piece in enumerate(rows):
            known[row_numbers(picture.digest, part, 1)[0]] = piece, number, part
    media, at = list[Medium](), 0
    while at < len(tokens):
        if is_row(tokens[at]):
            media.append(Medium(at, *known[tokens[at]]))
            at = media[-1].end
        else:
            at += 1
    return tuple(media)


def placed(
    pictures: Sequence[Picture], shapes: Sequence[MediaShape], texts: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[Medium, ...]]:
    """A prompt of tokens, with the pictures where the texts part: `texts` has one more than `pictures`."""
    assert len(texts) == len(pictures) + 1 == len(shapes) + 1
    tokens = [*texts[0]]
    for picture, shape, text in zip(pictures, shapes, texts[1:], strict=True):
        tokens += (*shown_tokens(picture, shape), *text)
    return tuple(tokens), media_in(tokens, pictures, shapes)
