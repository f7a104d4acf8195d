"""Pictures and sounds (media items) in prompts, as rows that an encoder makes. Row numbers lie outside every
vocabulary and derive from the item's digest, so equal numbers mean equal items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import ClassVar, Union

import msgspec

from openai_cpu_server.errors import InvalidRequest

FIRST_ROW = 1 << 62
_ROW_BYTES = 8
BLIND = "This model does not take pictures."
DEAF = "This model does not take sound."
SAMPLE_BYTES = 4
_MOST_TIMES = 100
"""Largest ratio of a picture's sides, because a narrower one would vanish when scaled."""
MOST_SOUND_S = 1800


class PictureSize(msgspec.Struct, frozen=True, tag="picture"):
    width: int
    height: int

    @property
    def words(self) -> str:
        return f"a picture of {self.width} x {self.height} pixels"

    @property
    def why_not(self) -> str:
        """Reason why no model takes such a picture, or ""."""
        if max(self.width, self.height) > _MOST_TIMES * min(self.width, self.height):
            return f"{self.words.capitalize()} is too narrow to be scaled."
        return ""


class SoundSize(msgspec.Struct, frozen=True, tag="sound"):
    num_samples: int

    @property
    def words(self) -> str:
        return f"a sound of {self.num_samples:,} samples"


MediaSize = Union[PictureSize, SoundSize]


class Picture(msgspec.Struct, frozen=True, weakref=True, tag="picture"):
    kind: ClassVar[str] = "picture"
    size: PictureSize
    content: memoryview
    """(height, width, 3) bytes: red, green, blue."""
    digest: str

    @classmethod
    def of(cls, size: PictureSize, content: bytes) -> Picture:
        assert len(content) == 3 * size.width * size.height
        return cls(size, memoryview(content), _digest(f"{size.width}x{size.height}:", content))


class Sound(msgspec.Struct, frozen=True, weakref=True, tag="sound"):
    """Samples of one channel at `ModelInfo.sound_rate`."""

    kind: ClassVar[str] = "sound"
    size: SoundSize
    content: memoryview
    """Finite float32 samples, little-endian. Full scale is -1 to 1, which files of floats may exceed."""
    digest: str

    @classmethod
    def of(cls, content: bytes) -> Sound:
        assert len(content) % SAMPLE_BYTES == 0
        size = SoundSize(len(content) // SAMPLE_BYTES)
        return cls(size, memoryview(content), _digest(f"sound {size.num_samples}:", content))


MediaItem = Union[Picture, Sound]
"""Contents are views, because copying 40 MB out of a message holds the interpreter's lock for 30 ms."""


def _digest(head: str, content: bytes) -> str:
    digest = hashlib.blake2b(head.encode(), digest_size=32)
    digest.update(content)
    return digest.hexdigest()


class MediaEmbeddings(msgspec.Struct, frozen=True):
    num_rows: int
    num_positions: int
    """Fewer than rows if positions have several dimensions."""
    has_one_place: bool = False
    """All rows have the same position, so no sequence can begin between them."""
    is_whole: bool = False
    """Rows attend to all others, so one step computes them."""


MediaShape = tuple[Union[tuple[int, ...], MediaEmbeddings], ...]


class MeasuredMedia(msgspec.Struct, frozen=True, omit_defaults=True):
    size: MediaSize
    shape: MediaShape = ()
    why_not: str = ""


def require_senses(sizes: Iterable[MediaSize], *, sees: bool, hears: bool) -> None:
    """Reject media that the model does not take. Raises InvalidRequest."""
    for size in sizes:
        if not (sees if isinstance(size, PictureSize) else hears):
            raise InvalidRequest(not_taken(size).why_not)


def not_taken(size: MediaSize) -> MeasuredMedia:
    return MeasuredMedia(size, why_not=BLIND if isinstance(size, PictureSize) else DEAF)


class PlaceholderRange(msgspec.Struct, frozen=True):
    start: int
    rows: MediaEmbeddings
    item: int
    part: int = 0
    """Index into the item's shape."""

    @property
    def end(self) -> int:
        return self.start + self.rows.num_rows

    @property
    def can_be_cut(self) -> bool:
        return not (self.rows.has_one_place or self.rows.is_whole)


def is_row(number: int) -> bool:
    return number >= FIRST_ROW


def row_numbers(digest: str, part: int, num_rows: int) -> tuple[int, ...]:
    stream = hashlib.shake_128(f"{digest}/{part}".encode()).digest(num_rows * _ROW_BYTES)
    words = (stream[at : at + _ROW_BYTES] for at in range(0, len(stream), _ROW_BYTES))
    return tuple(FIRST_ROW | (int.from_bytes(word, "little") >> 2) for word in words)


def are_rows(tokens: Sequence[int], media: Sequence[PlaceholderRange], items: Sequence[MediaItem]) -> bool:
    """Check the rows of these media, in order, with tokens behind the last."""
    end = 0
    for placeholder in media:
        if not (
            end <= placeholder.start < placeholder.end < len(tokens) and 0 <= placeholder.item < len(items)
        ):
            return False
        digest = items[placeholder.item].digest
        if tuple(tokens[placeholder.start : placeholder.end]) != row_numbers(
            digest, placeholder.part, placeholder.rows.num_rows
        ):
            return False
        end = placeholder.end
    return True


def shown_tokens(item: MediaItem, shape: MediaShape) -> tuple[int, ...]:
    tokens, part = list[int](), 0
    for piece in shape:
        if isinstance(piece, MediaEmbeddings):
            tokens += row_numbers(item.digest, part, piece.num_rows)
            part += 1
        else:
            tokens += piece
    return tuple(tokens)


def media_in(
    tokens: Sequence[int], items: Sequence[MediaItem], shapes: Sequence[MediaShape]
) -> tuple[PlaceholderRange, ...]:
    ranges: dict[int, tuple[MediaEmbeddings, int, int]] = {}
    for number, (item, shape) in enumerate(zip(items, shapes, strict=True)):
        rows = [piece for piece in shape if isinstance(piece, MediaEmbeddings)]
        for part, piece in enumerate(rows):
            ranges[row_numbers(item.digest, part, 1)[0]] = piece, number, part
    media, at = list[PlaceholderRange](), 0
    while at < len(tokens):
        if is_row(tokens[at]):
            media.append(PlaceholderRange(at, *ranges[tokens[at]]))
            at = media[-1].end
        else:
            at += 1
    return tuple(media)


def placed(
    items: Sequence[MediaItem], shapes: Sequence[MediaShape], texts: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[PlaceholderRange, ...]]:
    assert len(texts) == len(items) + 1 == len(shapes) + 1
    tokens = [*texts[0]]
    for item, shape, text in zip(items, shapes, texts[1:], strict=True):
        tokens += (*shown_tokens(item, shape), *text)
    return tuple(tokens), media_in(tokens, items, shapes)
