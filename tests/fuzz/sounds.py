"""Sounds to send, good and hostile."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz import pictures

RATE = 16_000
FILES = {path.suffix[1:]: path.read_bytes() for path in sorted(Path(__file__).parent.glob("tone.*"))}
"""0.4 seconds of 440 Hz, loudest at one half: FLAC, MP3 (of lame, 16 kbit/s) and Ogg Vorbis (of oggenc)."""


def tone(seconds: float, hertz: float = 440.0, *, rate: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate) / 2


_HEAD = {"channels": (22, "<H"), "rate": (24, "<I"), "bits": (34, "<H")}
"""Offsets and formats of numbers in a WAV file."""


def wav(samples: np.ndarray, *, rate: int = RATE, kind: str = "<i2", channels: int = 1) -> bytes:
    """A RIFF file of 16 bits (`<i2`) or floats (`<f4`)."""
    body = (samples * 32_767 if kind == "<i2" else samples).astype(kind).tobytes()
    width, code = np.dtype(kind).itemsize * channels, 1 if kind == "<i2" else 3
    form = struct.pack("<HHIIHH", code, channels, rate, rate * width, width, 8 * width // channels)
    head = b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", len(body)) + body


def mp3_frames(number: int) -> bytes:
    """Silence: MPEG 1, layer III, 128 kbit/s, 44.1 kHz, one channel, all of whose side data are zero."""
    return (bytes((0xFF, 0xFB, 0x90, 0xC4)) + bytes(413)) * number


def oddities() -> Iterator[tuple[str, bytes]]:
    second = tone(1)
    yield "nothing", b""
    yield "text", b"Listen to this! " * 100
    yield "a picture's head", b"\x89PNG\r\n\x1a\n" + bytes(1000)
    yield "a head alone", wav(second)[:44]
    for name, number in (("channels", 0), ("channels", 65_535), ("rate", 0), ("rate", 2**31), ("bits", 255)):
        head = bytearray(wav(second))
        struct.pack_into(_HEAD[name][1], head, _HEAD[name][0], number)
        yield f"{name}: {number}", bytes(head)
    yield "1e30", wav(1e30 * second, kind="<f4")
    for number in (float("nan"), float("inf")):
        samples = second.copy()
        samples[5] = number
        yield f"{number}", wav(samples, kind="<f4")


def spoilt(good: bytes, source: random.Random) -> bytes:
    return pictures.spoilt(source, good)
