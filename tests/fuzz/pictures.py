"""Hostile pictures: almost valid files, files with false heads, files of other types, and bombs."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from random import Random

from PIL import Image

_PNG = b"\x89PNG\r\n\x1a\n"
_CHUNK_BYTES = 12
_NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)
_LARGE_BYTES = 64 * 2**20  # of some kilobytes when it is unpacked


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def good_pictures() -> list[bytes]:
    """Return small pictures of all accepted types and colour modes, some with several frames."""
    noise = Image.effect_noise((64, 48), 90).convert("RGB")
    palette, grey, clear = noise.convert("P"), noise.convert("L"), noise.convert("RGBA")
    clear.putalpha(grey)
    exif = Image.Exif()
    exif[0x10E], exif[0x112] = "a camera", 6
    frames = {"save_all": True, "append_images": [noise.rotate(90), noise.rotate(180)]}
    return [
        encoded(noise, "JPEG", exif=exif),
        encoded(noise, "JPEG", progressive=True, quality=30),
        encoded(noise.convert("CMYK"), "JPEG"),
        encoded(grey, "JPEG"),
        encoded(noise, "MPO", **frames),
        encoded(noise, exif=exif),
        encoded(palette, transparency=3),
        encoded(noise, transparency=(1, 2, 3)),
        encoded(clear.convert("LA")),
        encoded(clear),
        encoded(grey.convert("1")),
        encoded(Image.linear_gradient("L").convert("I").point(lambda level: level * 257).convert("I;16")),
        encoded(noise, **frames),
        encoded(noise, "WEBP", exif=exif),
        encoded(clear, "WEBP", lossless=True),
        encoded(noise, "WEBP", **frames),
        encoded(noise, "GIF", **frames),
        encoded(palette, "GIF", transparency=4),
        encoded(noise, "BMP"),
        encoded(palette, "BMP"),
        encoded(grey.convert("1"), "BMP"),
    ]


def spoilt(rng: Random, data: bytes) -> bytes:
    """Damage a picture. Checksums of PNG are often corrected, because decoders stop at a wrong one."""
    buffer = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        if buffer:
            _spoil(rng, buffer)
    return with_checksums(buffer) if rng.random() < 0.7 else bytes(buffer)


def _spoil(rng: Random, buffer: bytearray) -> None:
    at = rng.randrange(len(buffer))
    match rng.randrange(6):
        case 0:
            buffer[at] ^= 1 << rng.randrange(8)
        case 1:  # a false head
            buffer[rng.randrange(min(64, len(buffer)))] = rng.choice([0, 255, 127, rng.randrange(256)])
        case 2:
            del buffer[at:]
        case 3:  # a piece twice
            start = rng.randrange(len(buffer))
            buffer[at:at] = buffer[start : start + rng.randrange(400)]
        case 4:  # sizes and lengths
            number = rng.choice([*_NUMBERS, rng.randrange(2**32)])
            buffer[at : at + 4] = struct.pack(rng.choice("<>") + "I", number)
        case 5:
            del buffer[at : at + rng.randrange(40)]


def with_checksums(data: bytes | bytearray) -> bytes:
    """Return a PNG file with right checksums and lengths, or any other file as it is."""
    if not data.startswith(_PNG):
        return bytes(data)
    buffer, at = bytearray(_PNG), len(_PNG)
    while at + _CHUNK_BYTES <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 8 + min(length, len(data) - at - _CHUNK_BYTES)
        buffer += _chunk(bytes(data[at + 4 : at + 8]), bytes(data[at + 8 : end]))
        at = end + 4
    return bytes(buffer)


def bomb(side: int = 20_000) -> bytes:
    """Return a valid PNG file of less than 100 kB with `side` pixels on each side."""
    return _png(_head(side, side, depth=1), zlib.compress(bytes((side // 8 + 1) * side), 9))


def oddities() -> Iterator[tuple[str, bytes]]:
    """Yield pictures that random damage does not make. All but those named "can be taken" are refused."""
    yield "nothing", b""
    yield "one byte", b"\x89"
    yield "text", b"a picture of a cat"
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield "HTML", b"<!doctype html><img src=x>"
    yield "PDF", b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n"
    yield "PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nquit\n"
    yield "program", b"\x7fELF\x02\x01\x01" + bytes(200)
    yield "gzip", gzip.compress(bytes(_LARGE_BYTES))
    yield "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    for kind in ("PPM", "TGA", "ICO", "PCX", "DIB"):
        yield kind, encoded(Image.new("RGB", (32, 32)), kind)
    yield "PNG bomb", bomb()
    yield "PNG, the largest", png(2**31 - 1, 2**31 - 1)
    yield "PNG, no pixels", _png(_head(0, 0), zlib.compress(b""))
    yield "PNG, a large chunk", _PNG + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(13)
    yield "PNG, chunks without end", _PNG + _chunk(b"IHDR", _head(9, 9)) + _chunk(b"tEXt", b"a\0b") * 50_000
    large = zlib.compress(bytes(_LARGE_BYTES), 9)
    yield "PNG, a profile that is a bomb", _png(_head(9, 9), b"", _chunk(b"iCCP", b"x\0\0" + large))
    yield "PNG, texts that are bombs", _png(_head(9, 9), b"", _chunk(b"zTXt", b"x\0\0" + large) * 8)
    yield "PNG, can be taken: rows behind its last", _png(_head(90, 90), large)
    yield "JPEG, the largest", b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03\x01\x11\0\x02\x11\0\x03\x11\0"
    yield "JPEG, heads without end", b"\xff\xd8" + b"\xff\xe1\0\x08Exif\0\0" * 50_000
    yield (
        "JPEG, scans without end",
        _with_repeated_scan(encoded(Image.new("L", (999, 999)), "JPEG", progressive=True)),
    )
    yield "GIF, the largest", b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0;"
    yield "GIF, no frames", b"GIF89a\x09\0\x09\0\0\0\0;"
    yield "GIF, blocks without end", b"GIF89a\x09\0\x09\0\0\0\0" + b"!\xfe\x01x\0" * 50_000
    yield "BMP, the largest", bmp(2**31 - 1, 2**31 - 1)
    yield "BMP, less than nothing", bmp(-5, -5)
    yield "WebP, the largest", _webp(b"VP8X", b"\0\0\0\0" + b"\xff" * 6)
    yield "WebP, frames without pixels", _webp(b"VP8X", b"\2\0\0\0" + bytes(6)) + b"ANMF" + bytes(4)


def _with_repeated_scan(jpeg: bytes) -> bytes:
    """Repeat the last scan 1,000 times: some kilobytes that take seconds to decode."""
    start = jpeg.rindex(b"\xff\xda")
    return jpeg[:start] + jpeg[start:-2] * 1000 + jpeg[-2:]


def png(width: int, height: int) -> bytes:
    """Return a picture with a head of this size, and without pixels."""
    return _png(_head(width, height), b"")


def _head(width: int, height: int, depth: int = 8) -> bytes:
    return struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)


def _png(head: bytes, rows: bytes, between: bytes = b"") -> bytes:
    return _PNG + _chunk(b"IHDR", head) + between + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bmp(width: int, height: int) -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head


def _webp(kind: bytes, data: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk
