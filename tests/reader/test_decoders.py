"""Decoded pictures: their size, orientation and colours, and refusals by the header."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest
from PIL import Image

from openai_cpu_server.contract.media import PictureSize
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.reader.decoders import decoded_picture
from tests.fuzz import pictures
from tests.fuzz.pictures import encoded

LARGEST = 2048 * 2048


@pytest.mark.parametrize(
    ("kind", "size", "most_side", "expected"),
    [
        ("PNG", (2048, 2048), 0, (2048, 2048)),
        ("PNG", (100, 6000), 0, (100, 6000)),
        ("PNG", (4000, 3000), 0, (2364, 1773)),
        ("JPEG", (3000, 4000), 0, (1773, 2364)),
        ("JPEG", (3000, 4000), 512, (384, 512)),
        ("GIF", (4000, 3000), 512, (512, 384)),
    ],
)
def test_larger_pictures_are_scaled_down(
    kind: str, size: tuple[int, int], most_side: int, expected: tuple[int, int]
) -> None:
    left_half = Image.new("RGB", (size[0] // 2, size[1]), (0, 0, 255))
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste(left_half)
    picture = decoded_picture(encoded(image, kind), most_pixels=12_000_000, most_side=most_side)
    assert picture.size == PictureSize(*expected)
    assert expected[0] * expected[1] <= LARGEST
    shown = Image.frombytes("RGB", expected, picture.content)
    for part, colour in ((0.25, (0, 0, 255)), (0.75, (255, 0, 0))):
        pixel = shown.getpixel((int(expected[0] * part), expected[1] // 2))
        assert isinstance(pixel, tuple)
        assert all(abs(found - meant) < 3 for found, meant in zip(pixel, colour, strict=True))


HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAVZtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAA"
    "ACJpbG9jAAAAAERAAAEAAQAAAAABegABAAAAAAAAACwAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRt"
    "AAAAAAABAAAA1mlwcnAAAAC3aXBjbwAAAHhodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMA"
    "AAMAHroCQGEAAQArQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbqSSmubgIaDAgAAAMAyAAAAwAIQGIAAQAHRAHBcrAiQAAAABNjb2xy"
    "bmNseAABAA0ABoAAAAAUaXNwZQAAAAAAAABAAAAAQAAAABBwaXhpAAAAAAMICAgAAAAXaXBtYQAAAAAAAAABAAEEgQIDBAAAADRt"
    "ZGF0AAAAKCgBrxOA5qhw0//+N9R//Fdnh+aCtEv/8oQaP7BRH/5tv0VIr/+9IeA="
)
"""64 x 64 pixels: the left half is red, the right half is blue."""


def png(kind: int, *levels: int, hidden: tuple[int, ...] = ()) -> bytes:
    """Return a PNG file of 16 bits with 40 x 40 pixels. `kind`: 0 grey, 2 colours, 4 grey with alpha, 6
    colours with alpha. `hidden`: the transparent colour."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    pixel = struct.pack(f">{len(levels)}H", *levels)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", 40, 40, 16, kind, 0, 0, 0)),
            *([chunk(b"tRNS", struct.pack(f">{len(hidden)}H", *hidden))] if hidden else ()),
            chunk(b"IDAT", zlib.compress((b"\0" + 40 * pixel) * 40)),
            chunk(b"IEND", b""),
        ]
    )


RED = Image.new("RGB", (64, 48), (220, 10, 10))
ROTATED = Image.Exif()
ROTATED[0x112] = 6


@pytest.mark.parametrize(
    ("data", "size", "colour"),
    [
        (encoded(RED, "AVIF"), (64, 48), (220, 10, 10)),
        (encoded(RED, "AVIF", exif=ROTATED.tobytes()), (48, 64), (220, 10, 10)),
        (encoded(RED, "TIFF"), (64, 48), (220, 10, 10)),
        (encoded(RED, "TIFF", exif=ROTATED), (48, 64), (220, 10, 10)),
        (encoded(Image.new("CMYK", (64, 48), (0, 255, 255, 0)), "TIFF"), (64, 48), (255, 0, 0)),
        (encoded(Image.new("F", (64, 48), 0.5), "TIFF"), (64, 48), (127, 127, 127)),
        (HEIC, (64, 64), (220, 10, 10)),
        (png(0, 200), (40, 40), (0, 0, 0)),
        (png(0, 32_768), (40, 40), (127, 127, 127)),
        (png(0, 1000, hidden=(1000,)), (40, 40), (255, 255, 255)),
        (png(0, 1000, hidden=(1001,)), (40, 40), (3, 3, 3)),
        (png(2, 65_535, 0, 32_768), (40, 40), (255, 0, 128)),
        (png(2, 1000, 2000, 3000, hidden=(1000, 2000, 3000)), (40, 40), (255, 255, 255)),
        (png(4, 0, 0), (40, 40), (255, 255, 255)),
        (png(4, 0, 65_535), (40, 40), (0, 0, 0)),
        (png(6, 0, 0, 0, 0), (40, 40), (255, 255, 255)),
    ],
)
def test_a_picture_is_shown_as_viewers_show_it(
    data: bytes, size: tuple[int, int], colour: tuple[int, int, int]
) -> None:
    picture = decoded_picture(data, most_pixels=1_000_000, most_side=0)
    assert picture.size == PictureSize(*size)
    assert all(abs(seen - meant) < 3 for seen, meant in zip(picture.content[:3], colour, strict=True))


def test_a_damaged_profile_is_ignored_and_a_narrow_picture_is_not_made_narrower() -> None:
    data = encoded(RED, "PNG", icc_profile=b"not a profile")
    assert decoded_picture(data, most_pixels=10_000, most_side=0).content[:3] == bytes((220, 10, 10))
    narrow = encoded(Image.new("RGB", (3000, 30)), "PNG")
    assert decoded_picture(narrow, most_pixels=100_000, most_side=512).size == PictureSize(3000, 30)


@pytest.mark.parametrize(
    "data",
    [
        pictures.png(1, 10_000_000),
        pictures.png(10_000_000, 1),
        pictures.bmp(1, 10_000_000),
        encoded(Image.new("L", (1, 9_999)), "GIF")[:60],
        encoded(Image.new("L", (9_999, 1)), "TIFF"),
    ],
    ids=["PNG", "PNG, wide", "BMP", "GIF", "TIFF"],
)
def test_a_picture_too_narrow_for_any_model_is_refused_by_its_header(data: bytes) -> None:
    """Most of these files have no pixels. The refusal is not that they are damaged."""
    with pytest.raises(InvalidRequest, match="too narrow") as refusal:
        decoded_picture(data, most_pixels=40_000_000, most_side=0)
    assert refusal.value.code == "invalid_image"
